"""Fractions of each tile's area on the overview: tissue, ink and folds."""

import numpy as np

from gigatile.slides.grid import Grid
from gigatile.slides.index import AREAS
from gigatile.slides.overview import Overview
from gigatile.slides.quality import fold_mask, ink_masks
from gigatile.slides.tissue import Tissue, mask_fractions

# A tile with a smaller stained fraction is background.
MIN_STAINED_FRACTION = 0.02


def area_fractions(overview: Overview, tissue: Tissue, grid: Grid) -> dict[str, np.ndarray]:
    """Return the fractions of each tile's area, for each of `AREAS`: (n,) float64 in 0-1."""
    if tissue.illumination == "transmitted":
        inks = ink_masks(overview.pixels)
        without_ink = tissue.stained & ~np.any(list(inks.values()), axis=0)
        masks = {f"pen_{ink}": mask for ink, mask in inks.items()}
        masks["folds"] = fold_mask(overview.pixels, without_ink)
    else:  # ink and folds are recognised by the light that they absorb
        masks = dict.fromkeys(AREAS, np.zeros_like(tissue.mask))
    fractions = {
        name: mask_fractions(mask, overview.downsample, grid) for name, mask in masks.items()
    }
    return fractions | {"tissue": tissue_fractions(overview, tissue, grid)}


def tissue_fractions(overview: Overview, tissue: Tissue, grid: Grid) -> np.ndarray:
    """Return the fraction of each tile's area that is tissue: (n,) float64 in 0-1."""
    # Unreadable parts of the overview may be tissue; reading the tiles shows if they are lost.
    mask, stained = tissue.mask | overview.unreadable, tissue.stained | overview.unreadable
    fractions = mask_fractions(mask, overview.downsample, grid)
    # A filled hole in the tissue can be larger than a tile, which is then empty.
    stained_fractions = mask_fractions(stained, overview.downsample, grid)
    return np.where(stained_fractions < MIN_STAINED_FRACTION, 0, fractions)
