"""The pages of a run on images with instances, in a browser: accessibility and phones."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe import faults_on_a_phone, violations_everywhere
from browser import Browser, started
from clones import Clone

PAGES = {
    "report": "report/index.html",
    "image": "report/images/E1.html",
    "predictions": "predictions/pages/index.html",
    "predicted-image": "predictions/pages/images/N1.html",
    "regions": "predictions/pages/images/N4.html",
    "external": "predictions/external/index.html",
    "slides": "predictions/slide_pages/index.html",
    "slide": "predictions/slide_pages/slides/S1.html",
}

every_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def run(predicted_images: Clone) -> Path:
    return predicted_images.folder / "results/small"


@every_page
def test_axe_finds_nothing(browser, run, page):
    assert violations_everywhere(browser, run / page) == []


@every_page
def test_page_fits_a_phone(browser, run, page):
    assert faults_on_a_phone(browser, run / page) == []


def test_the_image_shows_the_outlines_that_are_chosen(browser, run):
    """Each button shows its kinds of outlines, and hides the others."""
    browser.emulate()
    browser.open(run / PAGES["image"])
    shown = """
    return [...new Set([...document.querySelectorAll(".outlines path:not(.rim)")]
      .filter((path) => path.getClientRects().length).map((path) => path.classList[0]))].sort();
    """
    every = browser.run(shown)
    assert {"missed", "invented"} <= {*every}
    browser.run("document.querySelector('#show-all').focus()")
    for expected in ({"matched", "missed"}, {"predicted", "invented"}, {"missed", "invented"}, {}):
        browser.type("right")
        assert browser.run(shown) == [kind for kind in every if kind in expected]
