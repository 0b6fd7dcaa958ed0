"""The report in a real Chromium, on a phone and on a desk, in light and in dark: ``make browser``.

Not collected with the other tests: it needs the Debian package chromium and the extra ``browser``. ``NOISEWISE_SCREENSHOTS`` names a
folder for the pictures, to look at.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import sync_playwright

import noisewise as nw
from noisewise.comparison import add_comparisons

WIDTHS = (390, 1440)
SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """A report with every section: regression, price of privacy, prior and naive posterior."""
    column = nw.Column(-5, 5, rescale=(-1, 1))
    query = nw.queries.regression_moments({"dose": column}, {"relief": column})
    rng = np.random.default_rng(3)
    dose = rng.normal(0.5, 1, 150)
    relief = 1 + 0.8 * dose + rng.normal(0, 1, 150)
    value = np.asarray(query({"dose": dose, "relief": relief})) + rng.laplace(0, 2.0, query.size)
    release = nw.Release([nw.Measurement(query, nw.noise.Laplace(2.0), value)], n=150)
    model = nw.models.LinearRegression(("dose",), "relief", covariate_mean=[0.5], covariate_cov=[[1.0]])
    tree = nw.sample(model, release, draws=500, tune=500, random_seed=2, progressbar=False)
    tree = add_comparisons(tree, model, release, price=True)
    return nw.report(tree, tmp_path_factory.mktemp("browser") / "report.html")


@pytest.fixture(scope="module")
def chromium():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "Chromium is not installed; on Debian: apt-get install chromium."
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield browser
        browser.close()


@pytest.fixture(params=[(width, scheme) for width in WIDTHS for scheme in SCHEMES], ids=str)
def opened(request, chromium, page_file):
    width, scheme = request.param
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asking: asked.append(asking.url))
    page.goto(page_file.as_uri())
    yield page, said, asked
    if folder := os.environ.get("NOISEWISE_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"report-{width}-{scheme}.png"), full_page=True)
    context.close()


def test_the_page_is_quiet_alone_and_as_wide_as_the_screen(opened):
    page, said, asked = opened
    assert said == []
    assert [url for url in asked if not url.startswith("file:")] == []
    widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert widths[0] <= widths[1]
    frame = page.query_selector("#known .wide")
    whole = frame.evaluate("frame => frame.scrollWidth <= frame.clientWidth")
    assert whole or page.viewport_size["width"] < 600  # a phone shows the posterior's columns first
    interval = page.query_selector("#known tbody td:nth-child(4)").bounding_box()
    assert interval["x"] + interval["width"] <= page.viewport_size["width"]


def test_every_picture_is_drawn_and_every_link_leads_somewhere(opened):
    page, _, _ = opened
    boxes = page.evaluate(
        "[...document.querySelectorAll('svg')].map(s => [s.getBoundingClientRect().width, s.getBBox().width])"
    )
    assert len(boxes) > 5
    assert all(shown > 100 and drawn > 100 for shown, drawn in boxes)
    ends = page.evaluate(
        "[...document.querySelectorAll('figure:not(.broad) svg')].map(s => s.getBoundingClientRect().right)"
    )
    assert len(ends) > 4
    assert max(ends) <= page.viewport_size["width"]
    links = page.evaluate("[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))")
    assert len(links) >= 10
    assert all(page.query_selector(link) is not None for link in links)


CONTRAST = """() => {
  const parse = c => c.match(/[0-9.]+/g).slice(0, 3).map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 });
  const light = c => { const [r, g, b] = parse(c); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
  const page = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll('p, li, th, td, a, pre, figcaption, h1, h2, summary, svg text')].map(e => {
    const style = getComputedStyle(e);
    const ink = light(e.namespaceURI.endsWith('svg') ? style.fill : style.color);
    return (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05);
  });
}"""


def test_all_text_stands_out_from_the_page(opened):
    """The contrast ratio of WCAG 2, level AA."""
    page, _, _ = opened
    assert min(page.evaluate(CONTRAST)) >= 4.5


def test_the_page_prints(chromium, page_file):
    context = chromium.new_context()
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert page.pdf(format="A4")[:5] == b"%PDF-"
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    context.close()


def test_the_checks_see_a_page_that_is_too_wide_and_too_pale(chromium, page_file, tmp_path):
    bad = tmp_path / "bad.html"
    spoilt = page_file.read_text().replace(
        "</main>", '<p style="width:3000px;color:#bbb">too wide</p><script>console.error("loud")</script></main>'
    )
    bad.write_text(spoilt)
    context = chromium.new_context(viewport={"width": 390, "height": 900}, color_scheme="light")
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.goto(bad.as_uri())
    widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert widths[0] > widths[1]
    assert min(page.evaluate(CONTRAST)) < 4.5
    assert said == ["loud"]
    context.close()
