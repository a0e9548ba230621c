"""Pieces of the demo's slides, with a seventh of their pixels."""

from pathlib import Path

from gigatile.demo.cohort import find_slide
from gigatile.demo.svs import write_svs
from gigatile.demo.tissue import MPP, OBJECTIVE_POWER, draw_slide

# It contains tissue and glass, in every slide that has tissue.
ROWS, COLUMNS = slice(256, 1280), slice(384, 1408)


def draw_small_slide(slide: str, path: Path) -> None:
    """Write a piece of 1024 x 1024 px of a slide of the demo."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = draw_slide(find_slide(slide))[ROWS, COLUMNS]
    write_svs(path, pixels, mpp=MPP, objective_power=OBJECTIVE_POWER)
