"""The stain of one slide, and its tiles as if they were stained as the target is."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.settings.tiles import TileSettings
from gigatile.slides.areas import tissue_shares
from gigatile.slides.grid import Grid, plan_grid
from gigatile.slides.overview import read_overview
from gigatile.slides.reader import RegionError, SlideError, open_slide
from gigatile.slides.regions import Region, reader_by_openslide, regions_by_openslide
from gigatile.slides.scale import scale_of
from gigatile.slides.sorting import is_background
from gigatile.slides.stain import Normaliser, Stain, StainError, fit
from gigatile.slides.tissue import (
    MASK_LONGEST,
    MASK_PIXELS_PER_TILE,
    Light,
    find_tissue,
    region_sizes,
)

# A slide's stain is learnt from so many of its tiles, spread over it, and pixels of each.
TILES, PIXELS_PER_TILE = 64, 4096
NO_STAIN = "it is a slide of fluorescence, which has no stain"


@dataclass(frozen=True)
class Staining:
    """What a slide's stain is and becomes.

    Attributes:
        source: of the slide; None where it could not be told.
        target: what its tiles are normalised to.
        why_not: why the tiles stay as they are, else None.
    """

    source: Stain | None
    target: Stain
    why_not: str | None

    @property
    def normaliser(self) -> Normaliser | None:
        """What is done to each tile; None where nothing is."""
        return None if self.source is None else Normaliser(self.source, self.target)

    def as_dict(self) -> dict[str, Any]:
        """Return it as the state tells it."""
        return {
            "source": self.source and self.source.as_dict(),
            "target": self.target.as_dict(),
            "why_not": self.why_not,
        }


def learn(
    method: str,
    grid: Grid,
    regions: Callable[[np.ndarray], Iterator[Region]],
    boxes: np.ndarray,
    spans: np.ndarray,
    tell: Callable[[], None] = lambda: None,
) -> Stain:
    """Learn a slide's stain from some of its tiles.

    Args:
        method: of `gigatile.slides.stain`.
        grid: the slide's tiles.
        regions: gives the regions of boxes.
        boxes, spans: of its tiles with tissue, as `Grid.boxes` gives them.
        tell: is called each time that a tile was read.

    Raises:
        StainError: they do not tell it.
    """
    chosen = np.unique(np.linspace(0, len(boxes) - 1, TILES).astype(int))
    found = [np.empty((0, 3), np.uint8)]
    for region, span in zip(regions(boxes[chosen]), spans[chosen], strict=True):
        tell()
        try:
            pixels = grid.tile_of(region(), span).reshape(-1, 3)
        except RegionError:
            continue
        found.append(pixels[:: max(1, len(pixels) // PIXELS_PER_TILE)])
    return fit(method, np.concatenate(found))


def find_staining(
    settings: TileSettings,
    light: Light,
    grid: Grid,
    regions: Callable[[np.ndarray], Iterator[Region]],
    boxes: np.ndarray,
    spans: np.ndarray,
    tell: Callable[[], None] = lambda: None,
) -> Staining | None:
    """Return what is done about a slide's stain; None if the settings want nothing done.

    A slide whose stain cannot be told keeps its colours, and its state says why.
    """
    if settings.stain == "off":
        return None
    assert settings.stain_target is not None  # with a stain, the settings always have one
    target = Stain(settings.stain, settings.stain_target)
    if light == "fluorescence":
        return Staining(None, target, NO_STAIN)
    try:
        return Staining(learn(settings.stain, grid, regions, boxes, spans, tell), target, None)
    except StainError as error:
        return Staining(None, target, str(error))


def stain_of_slide(
    source: Path, method: str, sheet_mpp: float | None, settings: TileSettings
) -> Stain:
    """Learn the stain of a slide, from tiles as the settings cut them.

    Args:
        source: the slide's file.
        method: of `gigatile.slides.stain`.
        sheet_mpp: micrometres per pixel of level 0 where the file's own is not to count.
        settings: size and scale of the tiles, and which count as background.

    Raises:
        SlideError: the slide cannot be used.
        StainError: it does not tell a stain.
    """
    with open_slide(source) as slide, contextlib.ExitStack() as close:
        mpp = scale_of(slide, sheet_mpp, settings.objectives).mpp
        grid = plan_grid(slide, mpp, settings)
        wanted = max(1.0, grid.extent / MASK_PIXELS_PER_TILE)
        low = read_overview(source, slide, wanted, MASK_LONGEST)
        tissue = find_tissue(low.pixels, *region_sizes(settings, mpp, low.downsample))
        if tissue.light == "fluorescence":
            raise StainError(NO_STAIN)
        shares = tissue_shares(low, tissue, grid)
        corners = grid.corners()[~is_background(shares, settings.max_background)]
        if not len(corners):
            raise SlideError("none of its tiles has tissue enough")
        boxes, spans = grid.boxes(corners)
        read = reader_by_openslide(source, grid.level, close)
        return learn(
            method,
            grid,
            lambda wanted: regions_by_openslide(read, wanted),
            boxes,
            spans,
        )
