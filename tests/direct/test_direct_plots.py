"""The plots show the law they say they show."""

import jax
import numpy as np
import pytest

import noisewise as nw

WEIGHT, BASE = nw.direct.LognormalWeight(3.0, 2.0), nw.noise.DiscreteLaplace.from_rho(0.7)


def test_draws_and_law_are_drawn_on_the_integers():
    draws = nw.direct.sample(jax.random.key(0), WEIGHT, BASE, 5000, released=10.0, method="strips")
    axes = nw.direct.plot_draws(WEIGHT, BASE, draws, released=10.0)
    shown, law = (line.get_ydata() for line in axes.lines)
    x = axes.lines[0].get_xdata()
    mass = (
        np.exp(-0.5 * (np.log(10 - np.arange(-60.0, 10)) - 3) ** 2 / 2)
        / (10 - np.arange(-60.0, 10))
        * 0.3 ** np.abs(np.arange(-60, 10))
    )
    expected = (mass / mass.sum())[(x + 60).astype(int)]
    np.testing.assert_allclose(law, expected, rtol=1e-6)
    assert np.all(np.abs(shown - expected) < 5 * np.sqrt(expected / 5000))


def test_step_plot_shows_the_bound_and_refuses_a_batch():
    axes = nw.direct.plot_step(WEIGHT, BASE, released=10.0, knots=16)
    assert "total variation" in axes.get_title()
    curve, stairs = (axes.lines[i].get_ydata() for i in range(2))
    assert curve[0] == pytest.approx(stairs[0])
    with pytest.raises(ValueError, match="One target"):
        nw.direct.plot_step(WEIGHT, BASE, released=np.array([1.0, 2.0]), knots=16)
    with pytest.raises(ValueError, match="draws must be finite"):
        nw.direct.plot_draws(WEIGHT, BASE, [np.nan])
