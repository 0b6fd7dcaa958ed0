"""The report: one file that needs nothing else, and that says what the run says."""

from __future__ import annotations

import html
import html.parser
import re
import warnings
import xml.dom.minidom

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import noisewise as nw
from noisewise.comparison import add_comparisons, prior_sensitivity
from noisewise.engines.naive import Naive
from noisewise.report.reproduce import script
from noisewise.report.summary import scalars, summarise
from noisewise.result import engine_expression

MODEL = nw.models.Categorical(np.full(26, 2.0))
COIN = nw.models.Bernoulli(2, 2)


@pytest.fixture(scope="module")
def release():
    rng = np.random.default_rng(1)
    value = rng.multinomial(60, np.full(26, 1 / 26)) + rng.laplace(0, 2.0, 26)
    query = nw.queries.Counts({"x": 26}, [("x",)])
    return nw.Release([nw.Measurement(query, nw.noise.Laplace(2.0), [value], name="<tables> & more")], n=60)


@pytest.fixture(scope="module")
def tree(release):
    return nw.naive(MODEL, release, draws=60, chains=2, random_seed=1)


@pytest.fixture(scope="module")
def page(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "page.html"
    return nw.report(tree, path, model=MODEL).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def coin():
    """A small run, with a naive posterior and a prior."""
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(2.0), [61.0])], n=60)
    tree = nw.sample(
        COIN, release, draws=1000, tune=300, chains=2, random_seed=1, progressbar=False, method="augmentation"
    )
    return add_comparisons(tree, COIN, release)


class Reader(html.parser.HTMLParser):
    """Collects the tags, and checks that they are closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "br", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_nothing_else(page):
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    names = {tag for tag, _ in reader.tags}
    assert not names & {"script", "link", "img", "iframe", "object"}
    for _, attrs in reader.tags:
        for key, value in attrs.items():
            if key in {"src", "href", "xlink:href"}:
                assert value.startswith("#"), value
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_every_plot_is_an_image_with_an_alternative_text_and_names_of_its_own(page):
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    # 24 of the parameters are drawn: densities and traces, one picture of intervals and one of the release
    assert len(plots) == 24 + 24 + 1 + 1
    assert "2 more parameters are in the tables and not drawn" in page
    assert page.count('class="broad"') == 24  # a phone shows all but the traces whole
    identifiers = []
    for plot in plots:
        root = xml.dom.minidom.parseString(plot).documentElement
        assert root.getAttribute("role") == "img"
        assert len(root.getAttribute("aria-label")) > 40
        assert not root.hasAttribute("width")
        found = re.findall(r'\bid="([^"]*)"', plot)
        assert set(re.findall(r"url\(#([^)]*)\)", plot)) <= set(found)
        identifiers += found
    assert len(set(identifiers)) == len(identifiers)


def test_the_page_suits_light_and_dark_and_narrow_screens(page):
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    assert "overflow-x: auto" in page
    assert "currentColor" in page
    # no ink of a fixed dark colour in the plots
    assert not re.search(r"(stroke|fill): #(000000|010203)", page)


def test_the_page_says_what_the_run_says(page, tree):
    for words in (
        tree.attrs["noisewise_verdict"],
        tree.attrs["noisewise_reason"],
        "A release of 1 measurement of n = 60 records",
        "&lt;tables&gt; &amp; more",
        "xᵢ ~ Categorical(p)",
        str(tree.attrs["random_seed"]),
        tree.attrs["inference_library_version"],
        "p[25]",
    ):
        assert words in page, words
    assert "<tables>" not in page


@pytest.fixture(scope="module")
def coin_page(coin, tmp_path_factory):
    return nw.report(coin, tmp_path_factory.mktemp("coin") / "page.html", level=0.5).read_text(encoding="utf-8")


def test_the_level_of_the_intervals_is_the_one_asked_for(coin, coin_page):
    draws = coin["posterior"]["p"].values
    low, high = np.quantile(draws, [0.25, 0.75])
    assert f"[{low:.4g}, {high:.4g}]" in coin_page
    assert "50% interval" in coin_page
    assert "90%" not in coin_page
    for level in (0, 1, 90, "wide"):
        with pytest.raises(ValueError, match="level must be"):
            nw.report(coin, "page.html", level=level)


def test_the_script_of_the_page_makes_the_same_draws_again(coin, coin_page, tmp_path, monkeypatch):
    """What a colleague does with the page: copy the document and the script, and run it."""
    blocks = [html.unescape(block) for block in re.findall(r"<pre>(.*?)</pre>", coin_page, re.DOTALL)]
    (script,) = (block for block in blocks if block.startswith("import noisewise"))
    (document,) = (block for block in blocks if block.startswith("{"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "release.json").write_text(document)
    made = {}
    exec(script, made)
    assert np.array_equal(made["dt"]["posterior"]["p"].values, coin["posterior"]["p"].values)
    assert (tmp_path / "report.html").exists()


def test_the_script_of_the_page_asks_for_the_engine_that_ran(tmp_path, monkeypatch):
    """Settings of the engine change the draws, so a script without them would not make them again."""
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(1.0), [3.0])], n=5)
    engine = nw.engines.Augmentation(interweave=False, block=2)
    sizes = {"draws": 20, "tune": 20, "chains": 2, "random_seed": 1, "progressbar": False}
    monkeypatch.chdir(tmp_path)
    release.save("release.json")
    made = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few draws do not converge
        tree = add_comparisons(nw.sample(COIN, release, method=engine, **sizes), COIN, release)
        code = script(tree)
        exec(code, made)
        plain = nw.sample(COIN, release, method="augmentation", **sizes)
    assert "method=nw.engines.Augmentation(interweave=False, block=2))" in code
    assert np.array_equal(made["dt"]["posterior"]["p"].values, tree["posterior"]["p"].values)
    assert not np.array_equal(plain["posterior"]["p"].values, tree["posterior"]["p"].values)
    tree.attrs["noisewise_engine"] = ""  # an engine with a kernel of the user's has no text
    assert script(tree) is None


def test_engines_that_cannot_be_told_in_code_have_no_expression():
    assert engine_expression(nw.engines.Counts()) == "nw.engines.Counts()"
    assert engine_expression(nw.engines.Augmentation(theta_move=lambda target, covariance: None)) is None
    assert engine_expression(Naive()) is None


def test_another_weight_of_the_prior_moves_the_posterior_as_its_closed_form(release):
    """A coin seen 60 times without noise to speak of: Beta(2 + s, 2 + n - s) becomes the posterior under Beta(2, 2)^power."""
    query = nw.queries.Moments({"x": nw.Column(0, 1)}, [{"x": 1}])
    sharp = nw.Release([nw.Measurement(query, nw.noise.DiscreteLaplace(0.02), [7])], n=60)
    tree = nw.sample(COIN, sharp, draws=4000, random_seed=1, progressbar=False)
    found = prior_sensitivity(tree, COIN)
    for power in (0.5, 2.0):
        law = stats.beta(power + 1 + 7, power + 1 + 53)  # the density p (1 - p) to the power
        mean, sd = found["p"].sel(power=power).values
        assert mean == pytest.approx(
            law.mean(), abs=4 * law.std() / np.sqrt(float(found["effective"].sel(power=power)))
        )
        assert sd == pytest.approx(law.std(), rel=0.1)
    assert abs(float(found["p"].sel(power=0.5)[0] - found["p"].sel(power=2.0)[0])) > 0.01


def test_draws_on_the_edge_of_the_prior_say_nothing_about_other_priors(coin):
    edge = coin.copy(deep=True)
    edge["posterior"]["p"].values[0, 0] = 0.0
    found = prior_sensitivity(edge, COIN)
    assert np.all(np.isnan(found["p"]))
    assert np.all(found["effective"] == 0)


def test_the_price_of_privacy_is_on_the_page_when_asked_for(coin, tmp_path):
    for model in (None, COIN):
        page = nw.report(coin, tmp_path / "price.html", model=model, price=True).read_text()
        assert "Where the posterior variance comes from" in page
        assert "records lost to noise" in page
    without = coin.copy()
    without.attrs |= {"noisewise_model_expression": ""}
    with pytest.raises(ValueError, match="give model= as well"):
        nw.report(without, tmp_path / "price.html", price=True)


def test_a_run_that_has_not_converged_is_marked(coin, tmp_path):
    bad = coin.copy()
    bad.attrs |= {"noisewise_converged": 0, "noisewise_verdict": "NOT converged: look."}
    page = nw.report(bad, tmp_path / "bad.html").read_text()
    assert '<p class="verdict bad"><strong>NOT converged: look.' in page


def test_a_good_run_is_not_marked_as_bad_and_its_naive_posterior_is_explained(coin, tmp_path):
    page = nw.report(coin, tmp_path / "good.html").read_text()
    assert 'class="verdict bad"' not in page
    assert "Converged: largest R-hat" in page
    assert "the sum of x, 61, is impossible for 60 records; taken as 60" in page
    assert nw.report(coin, tmp_path / "again.html").read_text() == page


def test_prior_and_naive_are_drawn_from_the_model_in_the_result_and_without_one_the_posterior_stands_alone(
    coin, tmp_path
):
    alone = coin.copy()
    del alone["naive"], alone["prior"]
    assert '<th scope="colgroup" colspan="3">naive</th>' in nw.report(alone, tmp_path / "known.html").read_text()
    alone.attrs |= {"noisewise_model_expression": ""}
    page = nw.report(alone, tmp_path / "alone.html").read_text()
    assert '<th scope="colgroup" colspan="3">posterior</th>' in page
    assert '<th scope="colgroup" colspan="3">naive</th>' not in page


def test_draws_made_elsewhere_in_the_house_have_a_page_too(tmp_path):
    draws = np.random.default_rng(1).normal(size=(1, 200, 2))
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"theta": (("chain", "draw", "k"), draws)})})
    tree.attrs = {"noisewise_method": "penalty", "epsilon": 4.0, "delta": 1e-6}
    page = nw.report(tree, tmp_path / "private.html").read_text()
    for words in ("was not judged", "penalty", "epsilon", "theta[1]"):
        assert words in page


def test_bad_input_gets_a_sentence(tree, tmp_path):
    with pytest.raises(ValueError, match="needs a DataTree made by"):
        nw.report(xr.DataTree(), tmp_path / "x.html")
    with pytest.raises(ValueError, match="needs a DataTree made by"):
        nw.report(3, tmp_path / "x.html")
    with pytest.raises(ValueError, match="path must be the name of a file"):
        nw.report(tree, None)
    with pytest.raises(ValueError, match="name a file in a folder that is there"):
        nw.report(tree, tmp_path / "none" / "x.html")


def test_the_summary_has_the_numbers_of_the_draws(coin):
    (row,) = summarise(coin)
    draws = coin["posterior"]["p"].values
    assert row.posterior.mean == pytest.approx(draws.mean())
    assert (row.posterior.low, row.posterior.high) == pytest.approx(tuple(np.quantile(draws, [0.05, 0.95])), rel=1e-14)
    assert row.missing_information == pytest.approx(coin["posterior"]["p"].attrs["missing_information"])
    # 4000 draws of the prior and of the naive posterior, 4 standard errors
    for found, law in ((row.prior, stats.beta(2, 2)), (row.naive, stats.beta(2 + 60, 2))):
        assert found.mean == pytest.approx(law.mean(), abs=4 * law.std() / np.sqrt(4000))
        assert found.sd == pytest.approx(law.std(), rel=6 / np.sqrt(2 * 4000))


def test_parameters_are_named_by_their_labels():
    group = xr.Dataset({"b": (("chain", "draw", "k", "l"), np.zeros((1, 2, 2, 1)))}, coords={"k": ["one", "two"]})
    assert list(scalars(group)) == ["b[one,0]", "b[two,0]"]
