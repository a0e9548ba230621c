"""Outlines of instances and annotations on a slide, and which of them lie in a part of it."""

import functools
import gzip
import json
import math
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.errors import UserError
from gigatile.instances.slide_state import DetectionState
from gigatile.json_models import read_model
from gigatile.viewer.decoding import SlideSize

# Outlines that a page draws at most; of more, only their number is sent.
MOST = 4000
# The first and the last line of a file of outlines.
BEGIN, END = '{"type":"FeatureCollection","features":[', "]}"
# Slides with their outlines in memory.
KEPT = 4


@dataclass(frozen=True)
class Outlines:
    """The outlines of the instances or annotations of a slide, in pixels of level 0.

    Attributes:
        boxes: (n, 4) float32: the smallest x and y, the largest x and y of each.
        category: (n,) the number of the category of each.
        scores: (n,) float32, NaN if one has none.
        points: (m, 2) float32: x and y of all rings, one after the other.
        ring_ends: (r,) the end of each ring in `points`.
        instance_ends: (n,) the end of each instance in `ring_ends`.
    """

    boxes: np.ndarray
    category: np.ndarray
    scores: np.ndarray
    points: np.ndarray
    ring_ends: np.ndarray
    instance_ends: np.ndarray

    def within(self, x: float, y: float, width: float, height: float) -> dict[str, Any]:
        """Return the instances in a rectangle, as JSON: their number and, unless too many, each.

        An instance is [category, score or null, rings], a ring [x, y, x, y, …].
        """
        left, top, right, bottom = self.boxes.T
        hit = (left <= x + width) & (right >= x) & (top <= y + height) & (bottom >= y)
        numbers = np.flatnonzero(hit).tolist()
        instances = [] if len(numbers) > MOST else [self._instance(number) for number in numbers]
        return {"total": len(numbers), "most": MOST, "instances": instances}

    def _instance(self, number: int) -> list[Any]:
        score = float(self.scores[number])
        first, end = self._span(self.instance_ends, number)
        spans = [self._span(self.ring_ends, ring) for ring in range(first, end)]
        rings = [self.points[begin:until].round(1).ravel().tolist() for begin, until in spans]
        return [int(self.category[number]), None if np.isnan(score) else round(score, 3), rings]

    @staticmethod
    def _span(ends: np.ndarray, number: int) -> tuple[int, int]:
        return int(ends[number - 1]) if number else 0, int(ends[number])


class OutlineCollector:
    """Collects outlines, one after the other."""

    def __init__(self) -> None:
        self._boxes, self._category, self._scores = array("f"), array("i"), array("f")
        self._points, self._ring_ends, self._instance_ends = array("f"), array("q"), array("q")

    def add(self, rings: Sequence[np.ndarray], category: int, score: float = math.nan) -> None:
        """Add an instance.

        Args:
            rings: of all polygons, each (n, 2), x and y.
            category: its number.
            score: NaN: it has none.
        """
        whole = np.concatenate(rings)
        self._category.append(category)
        self._scores.append(score)
        self._boxes.extend([*whole.min(axis=0), *whole.max(axis=0)])
        for ring in rings:
            self._points.extend(ring.ravel().tolist())
            self._ring_ends.append(len(self._points) // 2)
        self._instance_ends.append(len(self._ring_ends))

    def outlines(self) -> Outlines:
        """Return all that were added."""
        return Outlines(
            np.array(self._boxes, np.float32).reshape(-1, 4),
            np.array(self._category, np.int32),
            np.array(self._scores, np.float32),
            np.array(self._points, np.float32).reshape(-1, 2),
            np.array(self._ring_ends, np.int64),
            np.array(self._instance_ends, np.int64),
        )


@dataclass(frozen=True)
class DetectedSlide:
    """A slide and the folder with the instances that a model detected on it.

    Attributes:
        folder: predictions/slides of the run.
        slide: its id.
    """

    folder: Path
    slide: str

    def state(self) -> DetectionState:
        """Return the state of the slide after detection.

        Raises:
            UserError: the file is missing or damaged.
        """
        return read_model(DetectionState, self.folder / f"{self.slide}.json")

    def summary(self) -> str:
        """Return the number of instances of each category.

        Raises:
            UserError: the state is missing or damaged.
        """
        counts = self.state().instances
        return ", ".join(f"{name}: {count:,}" for name, count in counts.items()) or "none"

    def describe(self, size: SlideSize) -> dict[str, Any]:
        """Return what the page needs, as JSON.

        Raises:
            UserError: the state is missing or damaged.
        """
        state = self.state()
        return {
            **size.shown(),
            "mpp": state.mpp,
            "word": "Instance",
            "classes": sorted(state.instances),
            "counts": [state.instances[name] for name in sorted(state.instances)],
            "predicted": self.summary(),
            "layers": [],
        }

    def layer(self, name: str) -> bytes | None:
        """Return no layer: there are none."""
        return None

    def outlines(self, box: tuple[float, float, float, float]) -> dict[str, Any]:
        """Return the instances in a rectangle; see `Outlines.within`.

        Raises:
            UserError: the file is missing or damaged.
        """
        path = self.folder / f"{self.slide}.geojson.gz"
        modified = path.stat().st_mtime_ns if path.exists() else 0
        names = tuple(sorted(self.state().instances))
        return read_outlines(path, modified, names).within(*box)


@functools.lru_cache(maxsize=KEPT)
def read_outlines(path: Path, modified: int, categories: tuple[str, ...]) -> Outlines:
    """Read the outlines that `gigatile.instances.geojson.write_geojson` wrote.

    Each line is an instance, so the memory does not depend on the size of the text.

    Args:
        path: of the file, compressed.
        modified: its time, so that it is read again when it changes.
        categories: the names of the categories.

    Raises:
        UserError: the file is missing, damaged, or has other categories.
    """
    numbers = {name: number for number, name in enumerate(categories)}
    collected = OutlineCollector()
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            first, line = file.readline(), file.readline()
            if first.strip() != BEGIN:
                raise ValueError("does not begin with a FeatureCollection")
            while line and line.strip() != END:
                feature = json.loads(line.rstrip(",\n"))
                properties = feature["properties"]
                collected.add(
                    _rings(feature["geometry"]),
                    numbers[properties["classification"]["name"]],
                    properties["measurements"].get("Score", math.nan),
                )
                line = file.readline()
            if not line:
                raise ValueError("ends before its end")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (
        OSError,
        EOFError,
        zlib.error,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ) as error:
        reason = " ".join(repr(error).split())
        raise UserError(f"{path}: damaged, not outlines of instances ({reason:.100})") from None
    return collected.outlines()


def _rings(geometry: dict[str, Any]) -> list[np.ndarray]:
    """Return the rings of all polygons, each (n, 2) float64."""
    polygons = geometry["coordinates"]
    if geometry["type"] == "Polygon":
        polygons = [polygons]
    rings = [np.array(ring, np.float64) for polygon in polygons for ring in polygon]
    if not all(ring.ndim == 2 and ring.shape[1] == 2 and np.isfinite(ring).all() for ring in rings):
        raise ValueError("a ring is not a list of points x, y")
    return rings
