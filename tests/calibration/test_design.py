"""What nw.design predicts against posteriors of other simulated releases, computed here by sums over all databases."""

import numpy as np
import pytest
from scipy import special

import noisewise as nw

N, A, B = 60, 2.0, 3.0
MODEL = nw.models.Bernoulli(A, B)
QUERY = nw.queries.Counts(levels={"x": 2}, tables=[("x",)])
GRID = np.linspace(0, 1, 2001)[1:-1]


@pytest.fixture(scope="module")
def predicted():
    return nw.design(
        MODEL, QUERY, nw.noise.DiscreteLaplace, n=N, epsilon=[0.2, 1.0], replicates=200, draws=400, random_seed=4
    )


def simulated(epsilon, releases, seed):
    """Widths of 90% intervals, whether they hold the truth, and variances: posteriors of new releases by enumeration."""
    rng = np.random.default_rng(seed)
    scale = 2 / epsilon
    p = rng.beta(A, B, releases)
    ones = rng.binomial(N, p)
    geometric = rng.geometric(-np.expm1(-1 / scale), (2, releases, 2))
    noisy = np.stack([N - ones, ones], axis=1) + geometric[0] - geometric[1]
    k = np.arange(N + 1)
    residuals = np.abs(noisy[:, 0, None] - (N - k)) + np.abs(noisy[:, 1, None] - k)
    log_prior = (
        special.gammaln(N + 1) - special.gammaln(k + 1) - special.gammaln(N - k + 1) + special.betaln(k + A, N - k + B)
    )
    weights = special.softmax(log_prior - residuals / scale, axis=1)
    cdf = weights @ special.betainc(k[:, None] + A, N - k[:, None] + B, GRID)
    low, high = (np.array([np.interp(q, row, GRID) for row in cdf]) for q in (0.05, 0.95))
    mean = (k + A) / (N + A + B)
    within = mean * (1 - mean) / (N + A + B + 1)
    variance = weights @ (within + mean**2) - (weights @ mean) ** 2
    return high - low, (low <= p) & (p <= high), variance


@pytest.mark.parametrize(("row", "epsilon"), [(0, 0.2), (1, 1.0)])
def test_predictions_agree_with_the_posteriors_of_200_other_releases(predicted, row, epsilon):
    said = predicted.rows[row]
    width, covered, variance = simulated(epsilon, 200, seed=row)

    def close(name, value, values, said=said):
        error = np.hypot(np.std(values, ddof=1) / np.sqrt(len(values)), said[f"{name}_error"])
        return abs(said[name] - value) < 3.5 * error

    assert close("width", width.mean(), width)
    assert close("covered", covered.mean(), covered)
    assert close("sd", np.sqrt(variance.mean()), variance / (2 * np.sqrt(variance.mean())))
    # Beta-binomial: the expected variance given n' records in the clear is V0 (a + b) / (a + b + n')
    v0 = A * B / ((A + B) ** 2 * (A + B + 1))
    numbers = (A + B) * (v0 / variance.mean() - 1) - (A + B) * v0 / variance.mean() ** 2 * (variance - variance.mean())
    assert close("equivalent_n", (A + B) * (v0 / variance.mean() - 1), numbers)
    # the twin: the releases of the other epsilon
    other = predicted.rows[1 - row]
    assert not close("width", width.mean(), width, said=other)
    assert not close("equivalent_n", (A + B) * (v0 / variance.mean() - 1), numbers, said=other)


def test_the_table_prints_plots_and_goes_to_pandas(predicted, tmp_path):
    import pandas as pd

    frame = pd.DataFrame(predicted.to_dict())
    assert list(frame["epsilon"]) == [0.2, 1.0]
    assert frame["width"][0] > frame["width"][1]
    assert "200 simulated releases" in str(predicted)
    predicted.plot(path=tmp_path / "design.png")
    assert (tmp_path / "design.png").stat().st_size > 5000


def test_shares_of_the_budget_add_up_to_it():
    from noisewise.calibration.design import _choices

    queries = [QUERY, nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])]
    laws = [nw.noise.Laplace, nw.noise.Gaussian]
    found = list(_choices({"both": queries}, laws, [0.7], 1e-6, [[0.5, 0.5], [0.9, 0.1]], "replace_one"))
    assert [choice.split for choice in found] == ["0.5:0.5", "0.9:0.1"] * 2
    for choice in found:
        release = nw.calibration.simulate(MODEL, choice.measurements, n=N, random_seed=1).release
        if choice.noise == "Laplace":
            assert float(release.privacy.loss) == pytest.approx(0.7)
        else:
            assert float(release.recomputed_privacy(1e-6).loss) == pytest.approx(0.7, rel=1e-6)
    first, second = (float(noise.scale) for _, noise in found[1].measurements)
    assert second / first == pytest.approx(0.9 * 1 / (0.1 * 2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 0}, "needs a number of records"),
        ({"n": None}, "needs a number of records, if only a guess; got n=None"),
        ({"epsilon": []}, "epsilon must be positive numbers"),
        ({"epsilon": "much"}, "epsilon must be positive numbers; got 'much'"),
        ({"delta": float("nan"), "noise": nw.noise.Gaussian}, "delta"),
        ({"epsilon": [1.0, -1.0]}, "epsilon must be positive"),
        ({"noise": nw.noise.Laplace(1.0)}, "noise must be laws"),
        ({"noise": nw.noise.Gaussian}, "needs delta"),
        ({"split": [0.5, 0.5]}, "split must give 1 positive share"),
        ({"truth": {"q": 0.5}}, "truth names 'q'"),
        ({"level": 1.0}, "level must lie strictly between"),
        ({"replicates": 1}, "replicates must be a whole number"),
        ({"query": "x"}, "query must be a query"),
    ],
)
def test_bad_choices_are_refused_with_the_remedy(options, words):
    given = {"query": QUERY, "noise": nw.noise.Laplace, "n": N, "random_seed": 1} | options
    with pytest.raises(ValueError, match=words):
        nw.design(MODEL, given.pop("query"), given.pop("noise"), **given)
