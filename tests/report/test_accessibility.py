"""Reports and predictions in a real browser: accessibility, phones, dark mode, print, keyboard."""

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import case_runs
import numpy as np
import pytest
from axe import (
    ALL,
    DESKTOP,
    PHONE,
    TOO_WIDE,
    faults_on_a_phone,
    open_page,
    violations,
    violations_everywhere,
)
from browser import Browser, started
from PIL import Image
from slide_runs import add_predictions, build_run, cohort
from test_style import LEAST_CONTRAST, contrast, rgb
from written import write_cases, write_new_cases, write_new_slides, write_slides

PAPER = 718  # CSS pixels: A4 with margins of 10 mm
PAGES = {
    "slide-report": "slides/index.html",
    "slide": "slides/slides/S03b.html",
    "slide-predictions": "new_slides/index.html",
    "predicted-slide": "new_slides/slides/S03b.html",
    "case-report": "cases/index.html",
    "case": "cases/cases/C5.html",
    "case-predictions": "new_cases/index.html",
    "predicted-case": "new_cases/cases/N1.html",
}
MANY_CLASSES = "many_classes/index.html"
CLASSES = tuple(f"class number {number}" for number in range(1, 10))

every_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)


@pytest.fixture(scope="module")
def pages(whole_run: Path, whole_case_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all reports and predictions."""
    out = tmp_path_factory.mktemp("pages")
    slides = Path(shutil.copytree(whole_run, out / "slide-run"))
    add_predictions(slides)
    write_slides(slides, out / "slides")
    write_new_slides(slides, out / "new_slides", slides)
    cases = out / "case-run/demo"
    shutil.copytree(whole_case_run.parent / "data", cases.parent / "data")
    shutil.copytree(whole_case_run, cases)
    case_runs.add_new_cases(cases)
    write_cases(cases, out / "cases")
    write_new_cases(cases, out / "new_cases", cases)
    plans = cohort(CLASSES)
    for plan in plans:
        plan.columns = plan.rows = 3
    many = build_run(out / "many-run", plans, CLASSES)
    write_slides(many, out / "many_classes")
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("browser")) as running:
        yield running


@every_page
def test_axe_finds_nothing(browser, pages, page) -> None:
    assert violations_everywhere(browser, pages / page) == []


def test_axe_finds_planted_violations(browser, pages) -> None:
    open_page(browser, pages / PAGES["slide"])
    browser.run("""
    document.querySelector(".tiles img").removeAttribute("alt");
    document.querySelector("h1").innerHTML = "<button></button>";
    document.querySelector(".soft").style.color = "#999";
    document.querySelector(".good").setAttribute("aria-label", "correct");
    """)
    rules = {text.partition(":")[0] for text in violations(browser, ALL)}
    assert rules >= {"image-alt", "button-name", "color-contrast", "aria-prohibited-attr"}


@pytest.mark.parametrize("page", [*PAGES.values(), MANY_CLASSES], ids=[*PAGES, "many-classes"])
def test_page_fits_a_phone(browser, pages, page) -> None:
    assert faults_on_a_phone(browser, pages / page) == []


def test_wide_tables_scroll_inside_their_box(browser, pages) -> None:
    scrolled = """
    return [...document.querySelectorAll(".wide")].filter((box) => {
      box.scrollLeft = 60;
      return box.scrollWidth > box.clientWidth;
    }).map((box) => {
      const [row] = box.querySelector("tbody").rows;
      const start = box.getBoundingClientRect().left;
      const left = (element) => element ? element.getBoundingClientRect().left - start : 0;
      const first = box.querySelector(".sortable") && row.cells[0];
      return [box.scrollLeft > 0, left(first), left(box.querySelector("caption"))];
    });
    """
    open_page(browser, pages / MANY_CLASSES, width=PHONE)
    boxes = browser.run(scrolled)
    assert len(boxes) > 5 and all(scrolls for scrolls, _, _ in boxes)
    # The first column of a long table, and each caption, stay in the window.
    assert {(first, caption) for _, first, caption in boxes} == {(0, 0)}


def brightness(picture: bytes) -> float:
    """Return the median brightness of a PNG, 0 to 255."""
    return float(np.median(np.asarray(Image.open(io.BytesIO(picture)).convert("L"))))


@pytest.mark.parametrize(
    ("page", "plots"),
    [
        ("slides/index.html", ["svg.roc", "#training ~ .figures img"]),
        ("cases/index.html", ["#metrics ~ .figures img", "#training ~ .figures img"]),
    ],
    ids=["slides", "cases"],
)
def test_plots_follow_the_colour_scheme(browser, pages, page, plots) -> None:
    for scheme, darkest, brightest in (("light", 230, 255), ("dark", 0, 40)):
        open_page(browser, pages / page, scheme=scheme)
        for plot in plots:
            assert darkest <= brightness(browser.picture(plot)) <= brightest, (scheme, plot)


def test_text_and_line_of_a_roc_plot_have_contrast(browser, pages) -> None:
    colours = """
    const style = (selector) => getComputedStyle(document.querySelector(selector));
    const numbers = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
    const [text, curve] = [style(".roc text").fill, style(".roc .curve").stroke];
    return [style("body").backgroundColor, text, curve].map(numbers);
    """
    for scheme in ("light", "dark"):
        open_page(browser, pages / PAGES["slide-report"], scheme=scheme)
        ground, text, line = browser.run(colours)
        assert contrast(text, ground) >= LEAST_CONTRAST
        assert contrast(line, ground) >= 3  # WCAG 2.2, 1.4.11


PRINTED = """
const all = [...document.body.querySelectorAll("*")]
  .filter((element) => element.checkVisibility())
  .map((element) => [element, getComputedStyle(element)]);
const count = (selector, wrong) =>
  all.filter(([element, style]) => element.matches(selector) && wrong(style)).length;
const body = getComputedStyle(document.body);
return {
  colours: [body.backgroundColor, body.color],
  inverted: count("figure > img", (style) => style.filter !== "none"),
  controls: count("nav, .skip, .save, .opacity, .scroller, th button", () => true),
  fixed: count("*", (style) => ["sticky", "fixed"].includes(style.position)),
  clipped: count(".wide", (style) => style.overflowX !== "visible"),
};
"""
BROKEN_NUMBERS = """
return [...document.querySelectorAll("td")].filter((cell) => {
  const text = document.createRange();
  text.selectNodeContents(cell);
  const tops = new Set([...text.getClientRects()].map((line) => Math.round(line.top)));
  return /^[\\d.,−+]+$/.test(cell.textContent.trim()) && tops.size > 1;
}).map((cell) => cell.textContent);
"""


@pytest.mark.parametrize("page", [*PAGES.values(), MANY_CLASSES], ids=[*PAGES, "many-classes"])
def test_print_is_black_on_white_and_whole(browser, pages, page) -> None:
    open_page(browser, pages / page, width=PAPER, scheme="dark", media="print")
    assert browser.run(PRINTED) == {
        "colours": ["rgb(255, 255, 255)", "rgb(0, 0, 0)"],
        "inverted": 0,
        "controls": 0,
        "fixed": 0,
        "clipped": 0,
    }
    assert browser.run(TOO_WIDE)[0] == 0
    assert browser.run(BROKEN_NUMBERS) == []


def test_print_opens_the_details(browser, pages) -> None:
    browser.emulate()
    browser.open(pages / PAGES["case"])
    browser.run("""
    const details = document.querySelector("details");
    addEventListener("beforeprint", () => { window.opened = details.open; });
    """)
    assert browser.print().startswith(b"%PDF-")
    assert browser.run("return [opened, document.querySelector('details').open]") == [True, False]


# All that the keyboard reaches, in the order of the page; of radio buttons, the chosen one.
REACHABLE = """
const selector = "a[href], button, input, summary, [tabindex='0']";
window.reachable = [...document.querySelectorAll(selector)].filter((element) =>
  element.checkVisibility() && !(element.type === "radio" && !element.checked));
return reachable.map((element) => element.outerHTML.slice(0, 200));
"""
FOCUSED = """
const element = document.activeElement;
const marked = element.type === "radio" ? element.nextElementSibling : element;
const style = getComputedStyle(marked);
const box = marked.getBoundingClientRect();
const nav = document.querySelector("nav.sections");
const above = nav && !nav.contains(element) && !element.matches(".skip");
const stuck = above ? nav.getBoundingClientRect() : { top: 0, bottom: 0 };
return {
  index: reachable.indexOf(element),
  outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
  visible: (box.top > -1 || box.height > innerHeight) && box.left > -1 &&
    box.bottom > 0 && box.left < innerWidth && box.top < innerHeight,
  covered: stuck.top <= 0 && box.top < stuck.bottom && box.height < innerHeight / 2,
};
"""


@pytest.mark.parametrize(
    ("page", "width", "expected"),
    [
        ("slides/index.html", DESKTOP, ["nav.sections a", "th button", ".save", ".tiles a"]),
        ("slides/index.html", PHONE, ["nav.sections a", "th button", ".save", ".wide[tabindex]"]),
        (
            "slides/slides/S03b.html",
            DESKTOP,
            ["nav.ends a", ".viewer input[type=radio]", ".opacity input", ".tiles a", "summary"],
        ),
        ("cases/index.html", DESKTOP, ["nav.sections a", "th button", ".save"]),
        ("cases/cases/C5.html", DESKTOP, ["nav.ends a", ".viewer input", ".scroller input"]),
        ("new_slides/index.html", DESKTOP, ["th button", ".save", "th a"]),
    ],
    ids=["slides", "slides-phone", "slide", "cases", "case", "predictions"],
)
def test_keyboard_reaches_all_in_order_and_shows_the_focus(
    browser, pages, page, width, expected
) -> None:
    browser.emulate(width)
    browser.open(pages / page)
    names = browser.run(REACHABLE)
    assert names[0].startswith('<a class="skip"') and "<a " in names[1] + names[0]
    count = "return reachable.filter((element) => element.matches(arguments[0])).length"
    for selector in expected:
        assert browser.run(count.replace("arguments[0]", json.dumps(selector))), selector
    for number, name in enumerate(names):
        browser.type("tab")
        focus = {"index": number, "outlined": True, "visible": True, "covered": False}
        assert browser.run(FOCUSED) == focus, name


def test_focus_that_moves_up_is_not_covered_by_the_navigation(browser, pages) -> None:
    browser.emulate()
    browser.open(pages / PAGES["case-report"])
    names = browser.run(REACHABLE)
    browser.run("reachable.at(-1).focus()")
    for name in reversed(names[:-1]):
        browser.type("shift", "tab")
        focus = browser.run(FOCUSED)
        assert focus["visible"] and not focus["covered"], name
    assert focus["index"] == 0


def test_skip_link_moves_the_focus_to_the_content(browser, pages) -> None:
    browser.emulate()
    for name in ("slide-report", "slide", "case-predictions"):
        browser.open(pages / PAGES[name])
        browser.type("tab")
        top = "return document.activeElement.getBoundingClientRect().top >= 0"
        assert browser.run(top), "the skip link is visible"
        browser.type("enter")
        assert browser.run("return document.activeElement.matches('main#content')"), name
        browser.type("tab")
        assert browser.run("return document.activeElement.closest('main') !== null")


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("page", ["slides/index.html", "cases/index.html"])
def test_navigation_does_not_cover_the_section(browser, pages, page, width) -> None:
    browser.emulate(width)
    browser.open(pages / page)
    sections = browser.run("""
    const nav = document.querySelector("nav.sections");
    return [...nav.querySelectorAll("a")].map((link) => {
      link.click();
      const heading = document.querySelector(link.hash).getBoundingClientRect();
      const below = heading.top - nav.getBoundingClientRect().bottom;
      return [link.hash, below, innerHeight - heading.bottom];
    });
    """)
    assert len(sections) > 8
    assert [name for name, below, above in sections if below < 0 or above < 0] == []


def test_heat_map_changes_with_the_keyboard(browser, pages) -> None:
    browser.emulate()
    browser.open(pages / PAGES["slide"])
    layers = """
    return [...document.querySelectorAll(".layer")]
      .map((layer) => getComputedStyle(layer).display !== "none");
    """
    browser.run("document.querySelector('#class-0').focus()")
    assert browser.run(layers) == [True, False, False, False]
    browser.type("right")
    assert browser.run(layers) == [False, True, False, False]
    browser.run("document.querySelector('.opacity input').focus()")
    browser.type("right")
    opacity = "return document.querySelector('.map').style.getPropertyValue('--opacity')"
    assert browser.run(opacity) == "0.61"


def test_table_sorts_with_the_keyboard(browser, pages) -> None:
    browser.emulate()
    browser.open(pages / PAGES["slide-predictions"])
    browser.run("document.querySelector('.sortable th button').focus()")
    browser.type("enter")
    sort = "return document.querySelector('.sortable th').getAttribute('aria-sort')"
    assert browser.run(sort) == "ascending"


def test_names_of_buttons_are_short_and_unique(browser, pages) -> None:
    names = "return [...document.querySelectorAll('.save')].map((button) => button.ariaLabel)"
    browser.emulate(PHONE)
    for page in (PAGES["slide-report"], PAGES["case-report"]):
        browser.open(pages / page)
        labels = browser.run(names)
        assert len(labels) == len(set(labels)) > 3
        assert max(map(len, labels)) < 160
        assert all(label.startswith("Save as CSV: ") for label in labels)


def test_contrast_of_this_file_is_that_of_wcag() -> None:
    assert contrast(rgb("#000"), rgb("#fff")) == pytest.approx(21)
