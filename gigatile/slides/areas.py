"""What the overview shows of each tile: its share of tissue, of ink and of folds."""

import numpy as np

from gigatile.slides.grid import Grid
from gigatile.slides.index import AREAS
from gigatile.slides.overview import Overview
from gigatile.slides.quality import fold_mask, ink_masks
from gigatile.slides.tissue import Tissue, tissue_fractions

# A tile with a smaller stained fraction is background.
LEAST_STAINED = 0.02


def seen_areas(low: Overview, tissue: Tissue, grid: Grid) -> dict[str, np.ndarray]:
    """Return the shares of each tile's area that the overview shows: (n,) float64 in 0-1."""
    if tissue.light == "transmitted":
        inks = ink_masks(low.pixels)
        without_ink = tissue.stained & ~np.any(list(inks.values()), axis=0)
        masks = {f"pen_{ink}": mask for ink, mask in inks.items()}
        masks["folds"] = fold_mask(low.pixels, without_ink)
    else:  # ink and folds are known by the light that they take away
        masks = dict.fromkeys(AREAS, np.zeros_like(tissue.mask))
    found = {name: tissue_fractions(mask, low.downsample, grid) for name, mask in masks.items()}
    return found | {"tissue": tissue_shares(low, tissue, grid)}


def tissue_shares(low: Overview, tissue: Tissue, grid: Grid) -> np.ndarray:
    """Return the share of each tile's area that is tissue: (n,) float64 in 0-1."""
    # What the overview does not show may be tissue; the tiles themselves tell whether it is lost.
    shares = tissue_fractions(tissue.mask | low.unseen, low.downsample, grid)
    # A hole that belongs to the tissue can be larger than a tile, which then shows nothing.
    stained = tissue_fractions(tissue.stained | low.unseen, low.downsample, grid)
    return np.where(stained < LEAST_STAINED, 0, shares)
