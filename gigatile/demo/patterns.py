"""The growth patterns of the demo's classes, as pathologists know them.

Each is rendered into the two planes of a section. The classes differ in architecture: glands, solid
nests of polygonal cells, a net of alveolar walls. The depths are such that all classes have about
the same mean of both stains. The strength of the stains depends on the patient; see `tissue`. So a
class can be recognised by texture, but not by colour.
"""

import numpy as np
from scipy.spatial import cKDTree

from gigatile.demo import nuclei
from gigatile.demo.outlines import WavyOutlines, cells_around, contracted, painting, rounded
from gigatile.demo.section import GRAIN, Section, at_points, noise, sites


def draw_adenocarcinoma(rng: np.random.Generator, section: Section) -> None:
    """Draw glands: rings of columnar cells around pale lumens, in fibrous stroma."""
    _draw_stroma_cells(rng, section)
    centres = _thinned(rng, section.within(sites(rng, section.shape, 108.0)), keep=0.93)
    # No gland extends over its neighbour's lumen.
    nearest = cKDTree(centres).query(centres, k=2)[0][:, 1]
    radius = np.minimum(rng.uniform(46, 100, len(centres)), nearest * 0.70)
    glands = WavyOutlines.around(rng, centres, radius, swing=0.09)
    lumens = glands.scaled(rng.uniform(0.24, 0.50, len(centres))).rougher(rng, 0.12)
    with painting(section) as brush:
        for gland in glands.polygons():
            brush.fill(gland, haematoxylin=22, eosin=56)
        for lumen in lumens.polygons():
            brush.fill(lumen, haematoxylin=4, eosin=17)
    _grain(rng, section)
    # The nuclei are near the base of their cells, around the gland, and point to its centre.
    for scale, share in ((0.80, 0.93), (0.62, 0.35)):
        points, angles = glands.scaled(scale).ring(rng, apart=14.5, share=share)
        angles = angles + rng.normal(0, 0.3, len(angles))
        _set_down(rng, section, nuclei.COLUMNAR, points, angles)


def draw_squamous_carcinoma(rng: np.random.Generator, section: Section) -> None:
    """Draw nests of tightly packed polygonal cells, with whorls of keratin."""
    _draw_stroma_cells(rng, section)
    cells = _thinned(rng, section.within(sites(rng, section.shape, 29.0)), keep=0.86)
    hills = _values_at(noise(rng, section.shape, 190), cells)
    nested = np.abs(hills.astype(np.int64) - 128) > 17  # with bands of stroma between the nests
    depths = rng.integers(-11, 12, (len(cells), 2)).tolist()

    centres = _thinned(rng, section.within(sites(rng, section.shape, 300.0)), keep=0.7)
    whorls = WavyOutlines.around(rng, centres, rng.uniform(28, 58, len(centres)), swing=0.07)
    with painting(section) as brush:
        for number, cell in cells_around(cells, reach=70):
            if nested[number]:
                more, less = depths[number]
                # A pale seam between the cells, at the intercellular bridges.
                brush.fill(cell, haematoxylin=14, eosin=38)
                brush.fill(contracted(cell, cells[number], 2.4), 26 + more // 2, 58 + less)
        for turn in range(8):
            for layer in whorls.scaled(1 - turn / 9).polygons():
                brush.fill(layer, haematoxylin=6, eosin=(106, 70)[turn % 2])
    _grain(rng, section)

    away = cKDTree(centres).query(cells)[0] if len(centres) else np.full(len(cells), np.inf)
    points = cells[nested & (away > 50)]
    points = points + rng.uniform(-3, 3, points.shape)
    _set_down(rng, section, nuclei.POLYGONAL, points, rng.uniform(0, np.pi, len(points)))
    points, angles = whorls.scaled(0.8).ring(rng, apart=30, share=0.5)
    _set_down(rng, section, nuclei.FLAT, points, angles + np.pi / 2)


def draw_normal_lung(rng: np.random.Generator, section: Section) -> None:
    """Draw alveoli: a net of walls with flat nuclei and red cells, filled with air or fluid."""
    centres = _thinned(rng, section.within(sites(rng, section.shape, 59.0)), keep=0.8)
    thickness = rng.uniform(6, 15, len(centres))
    # Many spaces have fluid: otherwise most of a slide would be empty glass.
    fluid = rng.random(len(centres)) < 0.66
    fills = np.where(fluid[:, None], (10, 46), (3, 12)).tolist()
    walls = {}
    with painting(section) as brush:
        for number, cell in cells_around(centres, reach=110):
            brush.fill(cell, haematoxylin=34, eosin=76)
            walls[number] = rounded(contracted(cell, centres[number], 1.5), 3, 0.25)
            space = rounded(contracted(cell, centres[number], thickness[number]), 2, 0.18)
            brush.fill(space, *fills[number])
        # Openings between spaces.
        for first, second in cKDTree(centres).query_pairs(62, output_type="ndarray").tolist():
            alike = first in walls and second in walls and fluid[first] == fluid[second]
            if alike and rng.random() < 0.3:
                strip = _strip(centres[first], centres[second], rng.uniform(8, 14))
                brush.fill(strip, *fills[first])
    _grain(rng, section)

    along = np.concatenate(list(walls.values()))
    ahead = np.concatenate([np.roll(wall, -1, axis=0) - wall for wall in walls.values()])
    angles = np.arctan2(ahead[:, 1], ahead[:, 0])
    along = along + rng.uniform(-3, 3, along.shape)
    # No nuclei in the air of an opening.
    lot = np.where(_values_at(section.haematoxylin, along) > 18, rng.random(len(along)), 0.5)
    red = lot > 0.88
    _set_down_red_cells(rng, section, along[red], angles[red])
    for kind, low, high in ((nuclei.FLAT, 0, 0.18), (nuclei.LYMPHOCYTE, 0.18, 0.22)):
        chosen = (lot >= low) & (lot < high)
        _set_down(rng, section, kind, along[chosen], angles[chosen])
    # Some spaces have groups of red cells, and macrophages.
    free = section.within(sites(rng, section.shape, 17.0))
    bled = noise(rng, section.shape, 120)[::GRAIN, ::GRAIN] > 190
    red = at_points(bled, free) & (rng.random(len(free)) < 0.35)
    _set_down_red_cells(rng, section, free[red], rng.uniform(0, np.pi, int(red.sum())))
    macrophages = _thinned(rng, free, keep=0.012)
    angles = rng.uniform(0, np.pi, len(macrophages))
    bodies = nuclei.draw_stamps(rng, nuclei.MACROPHAGE_BODY)
    nuclei.set_down(rng, section.eosin, bodies, macrophages, angles)
    _set_down(rng, section, nuclei.MACROPHAGE, macrophages, angles)


def _draw_stroma_cells(rng: np.random.Generator, section: Section) -> None:
    """Draw the cells that all classes share: fibrocytes and lymphocytes."""
    for kind, spacing, share in ((nuclei.SPINDLE, 36, 0.6), (nuclei.LYMPHOCYTE, 24, 0.16)):
        points = _thinned(rng, section.within(sites(rng, section.shape, spacing)), keep=share)
        angles = at_points(section.lie, points) + rng.normal(0, 0.25, len(points))
        _set_down(rng, section, kind, points, angles)


def _set_down(
    rng: np.random.Generator,
    section: Section,
    kind: nuclei.NucleusKind,
    points: np.ndarray,
    angles: np.ndarray,
) -> None:
    stamps = nuclei.draw_stamps(rng, kind)
    nuclei.set_down(rng, section.haematoxylin, stamps, points, angles)


def _set_down_red_cells(
    rng: np.random.Generator, section: Section, points: np.ndarray, angles: np.ndarray
) -> None:
    stamps = nuclei.draw_stamps(rng, nuclei.RED_CELL)
    nuclei.set_down(rng, section.eosin, stamps, points, angles, clears=section.haematoxylin)


def _values_at(plane: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the values of a plane (height, width) at points (n, 2), x and y in px."""
    x, y = np.clip(points.astype(np.int64), 0, np.array(plane.shape[::-1]) - 1).T
    return plane[y, x]


def _strip(start: np.ndarray, end: np.ndarray, half: float) -> np.ndarray:
    """Return the corners (4, 2) of a strip between two points that is 2 `half` px wide."""
    away = end - start
    aside = np.array([-away[1], away[0]]) * (half / np.sqrt((away * away).sum()))
    return np.array([start + aside, end + aside, end - aside, start - aside])


def _thinned(rng: np.random.Generator, points: np.ndarray, keep: float) -> np.ndarray:
    return points[rng.random(len(points)) < keep]


def _grain(rng: np.random.Generator, section: Section) -> None:
    """Add grain like that of cytoplasm, proportional to the depth of the stain."""
    for plane, scale in ((section.eosin, 4), (section.haematoxylin, 6)):
        grain = noise(rng, section.shape, scale).astype(np.uint16)
        grain >>= 2
        grain += 96  # 0.75 to 1.25 times the depth, in 128ths: the product fits 16 bits
        grain *= plane
        grain >>= 7
        plane[:] = np.minimum(grain, 255)
