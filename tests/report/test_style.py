"""The style sheet of the pages: contrast in both colour schemes, and what the layout promises."""

import re
from collections.abc import Sequence

import pytest

from gigatile.report.pages import TEMPLATES

STYLE = (TEMPLATES / "style.css").read_text()
LEAST_CONTRAST = 4.5  # WCAG 2.2, 1.4.3, level AA
LIGHT, DARK, PRINT = (
    dict(re.findall(r"--([\w-]+):\s*([^;]+);", block))
    for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
)


def rgb(colour: str) -> list[float]:
    if colour.startswith("#"):
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        return [int(digits[k : k + 2], 16) for k in (0, 2, 4)]
    return [float(value) for value in colour.split()]


def luminance(colour: Sequence[float]) -> float:
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
        for v in (value / 255 for value in colour)
    ]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the contrast ratio of WCAG 2.2 for two colours (3,) of 0 to 255."""
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK, PRINT], ids=["light", "dark", "print"])
def test_text_has_enough_contrast(colours: dict[str, str]) -> None:
    pairs = [
        *((text, "page") for text in ("ink", "soft", "link", "good", "bad")),
        *((text, "bad-panel") for text in ("ink", "soft", "link", "good", "bad")),
        *((text, "warn-panel") for text in ("ink", "link", "warn")),
        ("page", "link"),
    ]
    for text, ground in pairs:
        ratio = contrast(rgb(colours[text]), rgb(colours[ground]))
        assert ratio >= LEAST_CONTRAST, f"--{text} on --{ground}: {ratio:.2f}"


@pytest.mark.parametrize("colours", [LIGHT, DARK, PRINT], ids=["light", "dark", "print"])
def test_text_of_a_full_confusion_cell_has_enough_contrast(colours: dict[str, str]) -> None:
    (opacity,) = re.findall(r"calc\(var\(--share\) \* ([\d.]+)\)", STYLE)
    assert ".confusion td .soft { color: var(--ink); }" in STYLE
    layers = zip(rgb(colours["shade"]), rgb(colours["page"]), strict=True)
    cell = [float(opacity) * shade + (1 - float(opacity)) * page for shade, page in layers]
    assert contrast(rgb(colours["ink"]), cell) >= LEAST_CONTRAST
