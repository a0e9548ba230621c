"""Annotations that a sheet names for a slide, in QuPath's GeoJSON: regions and objects."""

import functools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from threading import Lock
from typing import Any

import numpy as np

from gigatile.errors import UserError
from gigatile.instances.geojson import OutlinedObject, read_geojson
from gigatile.viewer.outlines import OutlineCollector, Outlines

# Of the text of a file: a quarter of a million cells. Reading it takes about ten times its size.
MAX_BYTES = 1 << 27
# Slides with their annotations in memory.
KEPT = 4
# One file at a time is read, so that the memory does not grow with the number of requests.
_READING = Lock()


@dataclass(frozen=True)
class Annotations:
    """The annotations of a slide.

    Attributes:
        classes: their names in alphabetical order.
        counts: how many there are of each.
        outlines: of all, the largest first, so that a small one is drawn above a large one.
    """

    classes: tuple[str, ...]
    counts: tuple[int, ...]
    outlines: Outlines

    def describe(self) -> dict[str, Any]:
        """Return what the page needs, as JSON."""
        return {"classes": self.classes, "counts": self.counts}


def open_annotations(path: Path) -> Annotations:
    """Return the annotations of a file; it is read again only if it has changed.

    Raises:
        UserError: the file is missing, too large, or no GeoJSON of objects with an area.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if not S_ISREG(stat.st_mode):  # reading a pipe would wait forever
        raise UserError(f"{path}: not a file")
    with _READING:
        return _read(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=KEPT)
def _read(path: Path, modified: int, size: int) -> Annotations:
    objects = read_geojson(path, MAX_BYTES)
    counts = Counter(map(_class_of, objects))
    classes = tuple(sorted(counts))
    numbers = {name: number for number, name in enumerate(classes)}
    collected = OutlineCollector()
    for item in sorted(objects, key=_area, reverse=True):
        rings = [ring for polygon in item.polygons for ring in polygon]
        collected.add(rings, numbers[_class_of(item)])
    return Annotations(classes, tuple(map(counts.__getitem__, classes)), collected.outlines())


def _class_of(item: OutlinedObject) -> str:
    return item.name or item.kind.capitalize()


def _area(item: OutlinedObject) -> float:
    """Return the area of the box around an object."""
    points = np.concatenate([ring for polygon in item.polygons for ring in polygon])
    width, height = np.ptp(points, axis=0)
    return float(width * height)
