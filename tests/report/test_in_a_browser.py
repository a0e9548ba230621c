"""Pages of the report in a real browser: their script, errors and requests."""

import time
from pathlib import Path

import pytest
from browser import Browser, started
from written import write_cases

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
