"""The accessibility of pages: axe-core (https://github.com/dequelabs/axe-core), and small windows.

The rules are those for WCAG 2.2, levels A and AA, and axe's best practices.
"""

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

from browser import Browser

DESKTOP, PHONE = 1200, 390  # CSS pixels
SMALLEST = 320  # WCAG 2.2, 1.4.10: content reflows at this width
ALL = {
    "type": "tag",
    "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa", "best-practice"],
}
# The rules whose result depends on the colour scheme. They take most of the time.
COLOURS = ["color-contrast", "link-in-text-block"]
OF_COLOURS = {"type": "rule", "values": COLOURS}

TOO_WIDE = """
const page = document.scrollingElement;
const inside = ".wide *, nav.sections *, svg *, .skip, .viewer > input";
const far = [...document.body.querySelectorAll("*")].filter((element) =>
  element.getBoundingClientRect().right > page.clientWidth + 1 && !element.matches(inside));
return [page.scrollWidth - page.clientWidth, far.map((element) => element.outerHTML.slice(0, 200))];
"""
OVERLAPS = """
return [...document.querySelectorAll("th, td")].filter((cell) => {
  const text = document.createRange();
  text.selectNodeContents(cell);
  return text.getBoundingClientRect().right > cell.getBoundingClientRect().right + 1;
}).map((cell) => cell.outerHTML.slice(0, 200));
"""
# In lines of text: a column that is too narrow breaks words into letters.
TALLEST_ROW = """
const rows = [...document.querySelectorAll("tr")].map((row) => row.offsetHeight);
return Math.max(...rows) / parseFloat(getComputedStyle(document.body).lineHeight);
"""


@cache
def source() -> str:
    """Return the source of axe-core."""
    package = importlib.util.find_spec("axe_playwright_python")
    assert package is not None and package.submodule_search_locations
    return (Path(package.submodule_search_locations[0]) / "axe.min.js").read_text()


def open_page(browser: Browser, path: Path, **window: Any) -> None:
    """Open a page with its details open, so that all of it is tested."""
    browser.emulate(**window)
    browser.open(path)
    browser.run("document.querySelectorAll('details').forEach((part) => { part.open = true; });")


def violations_everywhere(browser: Browser, path: Path) -> list[str]:
    """Return what axe finds on a page: on a desktop and a phone, light and dark."""
    open_page(browser, path)
    all_rules = violations(browser, ALL)
    browser.emulate(DESKTOP, scheme="dark")
    dark = violations(browser, OF_COLOURS)
    browser.emulate(PHONE)
    phone = violations(browser, ALL, rules={rule: {"enabled": False} for rule in COLOURS})
    browser.emulate(PHONE, scheme="dark")
    return [*all_rules, *dark, *phone, *violations(browser, OF_COLOURS)]


def violations(browser: Browser, only: dict[str, Any], **options: Any) -> list[str]:
    """Return the violations that axe finds, as `rule: element`.

    A contrast that axe cannot compute is none. All else that it is not sure of counts.

    Args:
        only: the rules to check, as in axe's option `runOnly`.
        options: other options of axe.
    """
    browser.run(source())
    options = json.dumps({"runOnly": only, "preload": False, "iframes": False} | options)
    shown = browser.wait_for(
        f"""axe.run(document, {options}).then(({{ violations, incomplete }}) =>
          [...violations, ...incomplete.filter((found) => found.id !== "color-contrast")]
            .flatMap((found) => found.nodes.map((node) => `${{found.id}}: ${{node.html}}`)))"""
    )
    assert isinstance(shown, list), shown
    return shown


def faults_on_a_phone(browser: Browser, path: Path) -> list[str]:
    """Return what does not fit into small windows: wide elements, cut texts and tall rows."""
    faults = []
    open_page(browser, path, width=PHONE)
    for width in (PHONE, SMALLEST):
        browser.emulate(width)
        scrolled, wide = browser.run(TOO_WIDE)
        faults += [f"{width}: scrolls by {scrolled} pixels"] if scrolled else []
        faults += [f"{width}: too wide: {element}" for element in wide]
        faults += [f"{width}: overlaps: {cell}" for cell in browser.run(OVERLAPS)]
        lines = browser.run(TALLEST_ROW)
        faults += [f"{width}: a row of {lines:.0f} lines"] if lines >= 20 else []
    return faults
