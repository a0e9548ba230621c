"""Outlines of cells, glands and air spaces, and a brush to fill them."""

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageDraw, ImageFilter
from scipy.spatial import Voronoi

from gigatile.demo.section import Section

_CORNERS = 40  # of the polygon of a wavy outline


@dataclasses.dataclass(frozen=True)
class WavyOutlines:
    """Closed wavy outlines around n centres: stretched circles with bumps."""

    centre: np.ndarray  # (n, 2), x and y in px
    radius: np.ndarray  # (n,), px
    stretch: np.ndarray  # (n,), long axis over radius
    tilt: np.ndarray  # (n,), radians from the x axis to the long axis
    swing: np.ndarray  # (n, waves), amplitude of each wave relative to the radius
    shift: np.ndarray  # (n, waves), phase of each wave, radians

    @classmethod
    def around(
        cls, rng: np.random.Generator, centre: np.ndarray, radius: np.ndarray, swing: float
    ) -> "WavyOutlines":
        """Return outlines of `radius` (n,) around `centre` (n, 2), with waves of up to `swing`."""
        count = len(centre)
        return cls(
            centre=centre,
            radius=radius,
            stretch=rng.uniform(1.0, 1.25, count),
            tilt=rng.uniform(0, np.pi, count),
            swing=rng.uniform(0, swing, (count, 3)),
            shift=rng.uniform(0, 2 * np.pi, (count, 3)),
        )

    def scaled(self, by: np.ndarray | float) -> "WavyOutlines":
        """Return the same shapes, scaled by a factor."""
        return dataclasses.replace(self, radius=self.radius * by)

    def rougher(self, rng: np.random.Generator, swing: float) -> "WavyOutlines":
        """Return the same shapes with four additional, shorter waves of up to `swing`."""
        more = (len(self.radius), 4)
        return dataclasses.replace(
            self,
            swing=np.concatenate([self.swing, rng.uniform(0, swing, more)], axis=1),
            shift=np.concatenate([self.shift, rng.uniform(0, 2 * np.pi, more)], axis=1),
        )

    def at(self, turn: np.ndarray) -> np.ndarray:
        """Return the points at the angles `turn` (n, m), radians: (n, m, 2), x and y in px."""
        waves = np.arange(2, 2 + self.swing.shape[1])
        phase = turn[..., None] * waves + self.shift[:, None, :]
        radius = self.radius[:, None] * (1 + (self.swing[:, None, :] * np.cos(phase)).sum(axis=-1))
        along = radius * np.cos(turn) * self.stretch[:, None]
        across = radius * np.sin(turn) / self.stretch[:, None]
        cos, sin = np.cos(self.tilt)[:, None], np.sin(self.tilt)[:, None]
        points = np.stack([along * cos - across * sin, along * sin + across * cos], axis=-1)
        return points + self.centre[:, None]

    def polygons(self) -> np.ndarray:
        """Return the outlines as polygons (n, corners, 2), x and y in px."""
        turn = np.arange(_CORNERS) * (2 * np.pi / _CORNERS)
        return self.at(np.broadcast_to(turn, (len(self.radius), _CORNERS)))

    def ring(
        self, rng: np.random.Generator, apart: float, share: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return points along the outlines, at distances of about `apart` px.

        Returns:
            A random `share` of these points (m, 2), x and y in px, and the direction from the
            centre to each of them, (m,) radians.
        """
        count = np.maximum((2 * np.pi / apart * self.radius).astype(np.int64), 3)
        number = np.arange(count.max(initial=0))
        jittered = number + rng.uniform(-0.3, 0.3, (len(count), len(number)))
        turn = jittered * (2 * np.pi) / count[:, None]
        centre = self.centre[:, None]
        away = (self.at(turn) - centre) * rng.uniform(0.94, 1.06, (*turn.shape, 1))
        chosen = (number < count[:, None]) & (rng.random(turn.shape) < share)
        return (away + centre)[chosen], np.arctan2(away[chosen, 1], away[chosen, 0])


class Brush:
    """Fills polygons in both planes of a section."""

    def __init__(self, section: Section) -> None:
        self._section = section
        self._planes = [Image.fromarray(section.haematoxylin), Image.fromarray(section.eosin)]
        self._pens = [ImageDraw.Draw(plane) for plane in self._planes]

    def fill(self, polygon: np.ndarray, haematoxylin: int, eosin: int) -> None:
        """Fill a polygon (corners, 2), x and y in px, with a depth of each stain."""
        # Whole pixels, so that rounding errors of coordinates do not change the image.
        corners = np.rint(polygon).astype(np.int64).ravel().tolist()
        for pen, depth in zip(self._pens, (haematoxylin, eosin), strict=True):
            pen.polygon(corners, fill=depth)

    def apply(self) -> None:
        """Copy the painted planes to the section, with edges softened as by optics."""
        soft = ImageFilter.BoxBlur(1)
        section = self._section
        for plane, painted in zip((section.haematoxylin, section.eosin), self._planes, strict=True):
            plane[:] = painted.filter(soft)


@contextlib.contextmanager
def painting(section: Section) -> Iterator[Brush]:
    """Yield a brush for a section; it is applied at the end of the block."""
    brush = Brush(section)
    yield brush
    brush.apply()


def cells_around(points: np.ndarray, reach: float) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the Voronoi cells of points (n, 2).

    Yields:
        The index of a point, and the corners of its cell (corners, 2) in order, x and y in px.
        Cells with a corner more than `reach` px from their point along an axis are skipped: at the
        rim of the tissue, no neighbour limits them.
    """
    diagram = Voronoi(points)
    for number, region in enumerate(diagram.point_region):
        corners = diagram.regions[region]
        if -1 in corners or len(corners) < 3:
            continue
        cell = diagram.vertices[corners]
        if np.abs(cell - points[number]).max() <= reach:
            yield number, cell


def contracted(cell: np.ndarray, centre: np.ndarray, by: float) -> np.ndarray:
    """Return a cell (corners, 2) with every corner moved `by` px towards the centre."""
    away = cell - centre
    distance = np.sqrt((away * away).sum(axis=1, keepdims=True))
    return centre + away * np.maximum(1 - by / np.maximum(distance, 1.0), 0.15)


def rounded(cell: np.ndarray, cuts: int, share: float) -> np.ndarray:
    """Return a polygon (corners, 2) with rounded corners.

    Chaikin's corner cutting (1974), repeated `cuts` times: each cut removes a `share` of each side
    at both ends and doubles the number of corners.
    """
    for _ in range(cuts):
        ahead = np.roll(cell, -1, axis=0)
        near, far = cell + share * (ahead - cell), ahead - share * (ahead - cell)
        cell = np.stack([near, far], axis=1).reshape(-1, 2)
    return cell
