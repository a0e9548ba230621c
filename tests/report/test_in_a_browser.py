"""Pages of the report in a real browser: their script, errors and requests."""

import time
from pathlib import Path

import pytest
from browser import Browser, started
from written import write_cases, write_slides

PICTURE = ".scroller img:not([hidden])"
STATE = """
const scroller = document.querySelector(".scroller");
const shown = [...scroller.querySelectorAll("img")].filter((image) => image.offsetParent);
const number = scroller.querySelector("input").value;
return [shown.length, shown[0].dataset.slice, scroller.querySelector("output").value, +number];
"""


@pytest.fixture(scope="module")
def report(whole_case_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report"
    write_cases(whole_case_run, out)
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory):
    with started(tmp_path_factory.mktemp("browser")) as running:
        yield running


def slice_of(browser: Browser) -> int:
    """Return the number of the slice that is shown; the picture, number and slider must agree."""
    images, shown, output, value = browser.run(STATE)
    assert (images, shown) == (1, output)
    number = int(shown.partition(" of 16 ")[0])
    assert value == number - 1
    return number


def test_slices_scroll_with_keys_wheel_and_drag(browser, report) -> None:
    browser.open(report / "cases/C4.html")
    start = slice_of(browser)
    browser.press(".scroller input", "right")
    browser.press(".scroller input", "up")
    assert slice_of(browser) == start + 2
    browser.press(".scroller input", "left")
    assert slice_of(browser) == start + 1
    browser.turn_wheel(PICTURE, 120)
    assert slice_of(browser) == start
    browser.turn_wheel(PICTURE, -250)
    assert slice_of(browser) == start + 2
    browser.drag(PICTURE, -12)
    assert slice_of(browser) == start + 4
    browser.press(".scroller input", "end")
    assert slice_of(browser) == 16
    before = browser.run("return scrollY")
    browser.turn_wheel(PICTURE, -120)
    deadline = time.monotonic() + 10
    while browser.run("return scrollY") >= before:  # scrolling is animated
        assert time.monotonic() < deadline, "at the last slice the page does not scroll on"
    assert slice_of(browser) == 16


def test_pages_load_nothing_else_and_show_no_error(browser, report) -> None:
    browser.errors(), browser.requests()
    for name in ("index.html", "cases/C4.html", "cases/C6.html"):
        browser.open(report / name)
        assert browser.requests() == [(report / name).resolve().as_uri()]
        assert browser.errors() == []


def test_click_on_a_heading_sorts(browser, report) -> None:
    browser.open(report / "index.html")
    column = """
    const table = document.querySelector("#cases ~ .wide table");
    table.querySelector("th button").click();
    return [...table.tBodies[0].rows].map((row) => row.cells[0].textContent.trim());
    """
    first, second = browser.run(column), browser.run(column)
    assert first == second[::-1] and len(set(first)) > 1


def test_numbers_sort_by_value_and_undefined_ones_last(browser, report) -> None:
    browser.open(report / "index.html")
    column = """
    const table = document.querySelector("#cases ~ .wide table");
    const cells = [...table.tBodies[0].rows].map((row) => row.cells[3]);
    ["0.9", "not defined", "0.123"].forEach((text, k) => { cells[k].textContent = text; });
    table.tHead.rows[0].cells[3].querySelector("button").click();
    const shown = [...table.tBodies[0].rows].map((row) => row.cells[3].textContent);
    return [shown, table.tHead.rows[0].cells[3].getAttribute("aria-sort")];
    """
    shown, direction = browser.run(column)
    assert shown.index("0.123") < shown.index("0.9") < shown.index("not defined")
    assert direction == "ascending"


def test_table_is_saved_as_csv(browser, report) -> None:
    browser.open(report / "index.html")
    saved = """
    const table = document.querySelector("#cases ~ .wide table");
    const [one, two, three] = [...table.tBodies[0].rows[0].cells];
    [one.textContent, two.textContent, three.textContent] = ['=a, "b"', "1,234", "-1.5"];
    let parts;
    window.Blob = function (content) { parts = content; };
    URL.createObjectURL = () => "data:,";
    HTMLAnchorElement.prototype.click = () => {};
    table.closest(".wide").nextElementSibling.click();
    return [parts[0] + parts[1], table.rows.length];
    """
    text, rows = browser.run(saved)
    lines = text.split("\r\n")
    assert lines[0].startswith("\ufeffCase,Patient,Warnings,Mean Dice")
    assert lines[1].startswith('"\'=a, ""b""",1234,-1.5,')
    assert len(lines) == rows + 1 and lines[-1] == ""


def test_tables_scroll_and_sort_with_the_keyboard(browser, report) -> None:
    browser.open(report / "index.html")
    heads = "return [...document.querySelectorAll('.sortable thead th')].map((head) =>"
    assert all(browser.run(f"{heads} head.firstElementChild.tabIndex === 0)"))
    wide = """
    return [...document.querySelectorAll(".wide")].map((wide) =>
      wide.scrollWidth <= wide.clientWidth || (wide.tabIndex === 0 && wide.ariaLabel !== ""));
    """
    assert all(browser.run(wide))


@pytest.fixture(scope="module")
def slide_page(whole_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("slides") / "report"
    write_slides(whole_run, out)
    return next((out / "slides").iterdir())


def view_of(browser: Browser) -> list[float]:
    """Return the part of the heat map that is shown: corner and size, as shares of the whole."""
    text, width, height = browser.run(
        "const svg = document.querySelector('.map svg');"
        "const whole = svg.querySelector('.overview');"
        "return [svg.getAttribute('viewBox'), +whole.getAttribute('width'),"
        " +whole.getAttribute('height')];"
    )
    x, y, w, h = map(float, text.split())
    return [x / width, y / height, w / width, h / height]


def test_heat_map_is_enlarged_with_buttons_keys_wheel_and_drag(browser, slide_page) -> None:
    browser.emulate(1200)
    browser.open(slide_page)
    assert view_of(browser) == [0, 0, 1, 1]
    click = "document.querySelectorAll('.zoom button')[{}].click()"
    browser.run(click.format(0))
    assert view_of(browser) == pytest.approx([0.25, 0.25, 0.5, 0.5])
    browser.press(".frame", "right")
    assert view_of(browser) == pytest.approx([0.35, 0.25, 0.5, 0.5])
    browser.drag(".frame", -40)
    moved = view_of(browser)
    height = browser.run("return document.querySelector('.map svg').getBoundingClientRect().height")
    assert moved == pytest.approx([0.35, 0.25 + 0.5 * 40 / height, 0.5, 0.5], abs=1e-3)
    for _ in range(9):
        browser.run(click.format(0))
    assert view_of(browser)[2:] == [1 / 16, 1 / 16]
    assert browser.run("return document.querySelector('.zoom button').ariaDisabled") == "true"
    for _ in range(60):
        browser.press(".frame", "left")
    assert view_of(browser)[0] == 0, "not beyond the picture"
    browser.run(click.format(2))
    assert view_of(browser) == [0, 0, 1, 1]
    # A link to a tile frames it in the map, so the whole map is shown.
    browser.run(click.format(0))
    browser.run("location.hash = document.querySelector('.map g[id^=tile]').id")
    deadline = time.monotonic() + 10
    while view_of(browser) != [0, 0, 1, 1]:
        assert time.monotonic() < deadline
    assert browser.errors() == []


def test_scale_bar_of_an_enlarged_map_is_right(browser, slide_page) -> None:
    """At every zoom, its length in pixels is that of its text."""
    browser.emulate(1200)
    browser.open(slide_page)
    measure = (
        "const bar = document.querySelector('.scale i');"
        "const text = bar.parentElement.textContent;"
        "const um = parseFloat(text) * (text.endsWith('mm') ? 1000 : 1);"
        "const box = document.querySelector('.frame').getBoundingClientRect();"
        "return [bar.getBoundingClientRect().width / box.width, um];"
    )
    share, um = browser.run(measure)
    whole = um / share
    for step in range(5):
        share, um = browser.run(measure)
        assert share <= 0.26 and um / share == pytest.approx(whole / 2**step, rel=0.03)
        browser.run("document.querySelectorAll('.zoom button')[0].click()")
