"""Estimate the stain of a slide, and plan the normalisation of its tiles to a target stain."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gigatile.settings.tiles import TileSettings
from gigatile.slides.areas import tissue_fractions
from gigatile.slides.grid import Grid, plan_grid
from gigatile.slides.opening import open_source
from gigatile.slides.overview import read_overview
from gigatile.slides.reader import RegionError, SlideError
from gigatile.slides.regions import Region, openslide_reader, openslide_regions
from gigatile.slides.scale import find_scale
from gigatile.slides.stain import Normaliser, Stain, StainError, fit
from gigatile.slides.state import Illumination, StainNumbers, StainState
from gigatile.slides.tile_filter import is_background
from gigatile.slides.tissue import (
    MASK_LONGEST,
    MASK_PIXELS_PER_TILE,
    find_tissue,
    region_sizes,
)

# A slide's stain is estimated from this many tiles, spread over the slide, and pixels of each.
TILES, PIXELS_PER_TILE = 64, 4096
NO_STAIN = "it is a fluorescence slide, which has no stain"


@dataclass(frozen=True)
class Normalisation:
    """The stain normalisation of a slide.

    Attributes:
        source: the slide's stain; None if it could not be estimated.
        target: the stain to which tiles are normalised.
        why_not: why tiles are not normalised, else None.
    """

    source: Stain | None
    target: Stain
    why_not: str | None

    @property
    def normaliser(self) -> Normaliser | None:
        """The function to apply to each tile; None if tiles are not normalised."""
        return None if self.source is None else Normaliser(self.source, self.target)

    def to_state(self) -> StainState:
        """Return the normalisation as the slide's state records it."""
        return StainState(
            source=self.source and _numbers(self.source),
            target=_numbers(self.target),
            why_not=self.why_not,
        )


def _numbers(stain: Stain) -> StainNumbers:
    return StainNumbers.model_validate(stain.as_dict())


def estimate_stain(
    method: str,
    grid: Grid,
    regions: Callable[[np.ndarray], Iterator[Region]],
    boxes: np.ndarray,
    spans: np.ndarray,
    report_progress: Callable[[], None] = lambda: None,
) -> Stain:
    """Estimate a slide's stain from some of its tiles.

    Args:
        method: of `gigatile.slides.stain`.
        grid: the tile grid.
        regions: returns the regions of boxes.
        boxes, spans: of the tiles with tissue, from `Grid.boxes`.
        report_progress: called after each tile.

    Raises:
        StainError: the stain cannot be estimated from them.
    """
    chosen = np.unique(np.linspace(0, len(boxes) - 1, TILES).astype(int))
    samples = [np.empty((0, 3), np.uint8)]
    for region, span in zip(regions(boxes[chosen]), spans[chosen], strict=True):
        report_progress()
        try:
            pixels = grid.resize_to_tile(region(), span).reshape(-1, 3)
        except RegionError:
            continue
        samples.append(pixels[:: max(1, len(pixels) // PIXELS_PER_TILE)])
    return fit(method, np.concatenate(samples))


def plan_normalisation(
    settings: TileSettings,
    illumination: Illumination,
    grid: Grid,
    regions: Callable[[np.ndarray], Iterator[Region]],
    boxes: np.ndarray,
    spans: np.ndarray,
    report_progress: Callable[[], None] = lambda: None,
) -> Normalisation | None:
    """Return the normalisation of a slide's tiles; None if the settings switch it off.

    If the slide's stain cannot be estimated, its tiles are not normalised, and `why_not` has the
    reason.
    """
    if settings.stain == "off":
        return None
    assert settings.stain_target is not None  # `TileSettings` sets it if there is a stain
    target = Stain(settings.stain, settings.stain_target)
    if illumination == "fluorescence":
        return Normalisation(None, target, NO_STAIN)
    try:
        source = estimate_stain(settings.stain, grid, regions, boxes, spans, report_progress)
    except StainError as error:
        return Normalisation(None, target, str(error))
    return Normalisation(source, target, None)


def estimate_slide_stain(
    source: Path, method: str, sheet_mpp: float | None, settings: TileSettings
) -> Stain:
    """Estimate the stain of a slide from tiles on the grid of the settings.

    Args:
        source: the slide's file.
        method: of `gigatile.slides.stain`.
        sheet_mpp: micrometres per pixel of level 0; overrides the file's.
        settings: size and scale of the tiles, and the largest background fraction.

    Raises:
        SlideError: the slide cannot be used.
        StainError: its stain cannot be estimated.
    """
    with open_source(source) as slide, contextlib.ExitStack() as close:
        mpp = find_scale(slide, sheet_mpp, settings.objectives).mpp
        grid = plan_grid(slide, mpp, settings)
        downsample = max(1.0, grid.extent / MASK_PIXELS_PER_TILE)
        overview = read_overview(slide.path, slide, downsample, MASK_LONGEST)
        tissue = find_tissue(overview.pixels, *region_sizes(settings, mpp, overview.downsample))
        if tissue.illumination == "fluorescence":
            raise StainError(NO_STAIN)
        fractions = tissue_fractions(overview, tissue, grid)
        corners = grid.corners()[~is_background(fractions, settings.max_background)]
        if not len(corners):
            raise SlideError("none of its tiles has enough tissue")
        boxes, spans = grid.boxes(corners)
        read = openslide_reader(slide.path, grid.level, close, slide.parts)
        return estimate_stain(
            method, grid, lambda chosen: openslide_regions(read, chosen), boxes, spans
        )
