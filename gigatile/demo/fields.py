"""Draws the images of the demo cohort with their nuclei: fields of view of stained tissue.

An image has the same bytes on every machine; see `tissue`.
"""

import numpy as np
from scipy import ndimage

from gigatile.demo import nuclei
from gigatile.demo.cohort import DemoSlide, seed_of
from gigatile.demo.images import DemoField
from gigatile.demo.section import GRAIN, connective_tissue, sites
from gigatile.demo.tissue import GLASS, stain_of

SIDE = 256
# Depth of haematoxylin at the boundary of a nucleus, and its fewest pixels.
_BOUNDARY, _FEWEST = 35, 60
# Kinds of nuclei, with the spacing of their lattice in pixels and the share of its points.
_KINDS = (
    (nuclei.POLYGONAL, 34.0, 0.6),
    (nuclei.LYMPHOCYTE, 24.0, 0.45),
    (nuclei.COLUMNAR, 30.0, 0.55),
)


def draw_field(field: DemoField) -> tuple[np.ndarray, np.ndarray]:
    """Render an image.

    Returns:
        (256, 256, 3) uint8 RGB, and its label image, uint8: the number of the nucleus of each
        pixel, 0 outside.
    """
    rng = np.random.default_rng(seed_of(f"gigatile demo, image {field.image}"))
    shape = (SIDE, SIDE)
    inside = np.ones((SIDE // GRAIN + 1, SIDE // GRAIN + 1), bool)
    section = connective_tissue(rng, inside, shape)
    kind, spacing, share = _KINDS[seed_of(f"gigatile demo, kind of {field.patient}") % len(_KINDS)]
    points = sites(rng, shape, spacing)
    points = points[rng.random(len(points)) < share]
    stamps = nuclei.draw_stamps(rng, kind)
    labels = _set_down(rng, section.haematoxylin, section.eosin, stamps, points)
    slide = DemoSlide(field.image, field.patient, "normal", field.site)
    depths = section.haematoxylin.astype(np.uint16) << 8
    depths |= section.eosin
    return np.take(stain_of(slide).table(GLASS[field.site]), depths, axis=0), labels


def _set_down(
    rng: np.random.Generator,
    haematoxylin: np.ndarray,
    eosin: np.ndarray,
    stamps: np.ndarray,
    points: np.ndarray,
) -> np.ndarray:
    """Copy nuclei to the planes, in place, and return their label image; borders may cut them."""
    side = stamps.shape[-1]
    labels = np.zeros(haematoxylin.shape, np.uint8)
    corners = np.rint(points).astype(np.int64) - side // 2
    turns = rng.integers(0, stamps.shape[0], len(points))
    variants = rng.integers(0, stamps.shape[1], len(points))
    number = 0
    for (column, row), turn, variant in zip(corners.tolist(), turns, variants, strict=True):
        rows, columns = (
            slice(*np.clip((first, first + side), 0, SIDE).tolist()) for first in (row, column)
        )
        stamp = stamps[turn, variant][
            rows.start - row : rows.stop - row, columns.start - column : columns.stop - column
        ]
        nucleus = ndimage.binary_fill_holes(stamp >= _BOUNDARY) & (labels[rows, columns] == 0)
        if nucleus.sum() < _FEWEST or number == np.iinfo(labels.dtype).max:
            continue  # nearly all of it is outside, or below another one
        number += 1
        labels[rows, columns][nucleus] = number
        plane = haematoxylin[rows, columns]
        np.maximum(plane, np.where(nucleus, stamp, 0), out=plane)
        eosin[rows, columns][nucleus] //= 2
    return labels
