"""Outlines of objects as GeoJSON, as QuPath writes and reads them.

https://qupath.readthedocs.io/en/stable/docs/advanced/exporting_annotations.html; QuPath's classes
`QuPathTypeAdapters` and `ROITypeAdapters`. Coordinates are x and y in level-0 pixels.
"""

import contextlib
import gzip
import io
import json
import math
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from gigatile.errors import UserError, all_faults
from gigatile.files import write_whole

# A polygon: its outer ring, then its holes, (n, 2) float64, x and y.
Polygon = list[np.ndarray]

# The namespace of the ids that `GeoJsonWriter` derives.
_NAMESPACE = uuid.UUID("6a0a3a8e-6f0b-5d5e-9a55-3f1c8f0e7b21")
# Decimals of coordinates, as in QuPath.
_DECIMALS = 2
# No slide is larger than this, in pixels.
MAX_COORDINATE = 1e7
# The kinds of objects by QuPath's types of objects. Version 0.2 wrote the second ones, as ids.
_KINDS = {
    **{kind: kind for kind in ("annotation", "detection", "cell")},
    "PathAnnotationObject": "annotation",
    "PathDetectionObject": "detection",
    "PathCellObject": "cell",
    "unknown": "annotation",
}
# Types of parts of a slide, which are not objects in it. They are skipped.
_PARTS = {
    "root",
    "tile",
    "tmaCore",
    "tma_core",
    "PathRootObject",
    "PathTileObject",
    "TMACoreObject",
}
_OLD_IDS = {name for name in _PARTS | set(_KINDS) if name.endswith("Object")}
# Edges and rows that `rasterise` processes together.
_CROSSINGS = 1 << 20


@dataclass(frozen=True)
class OutlinedObject:
    """An object of a GeoJSON file.

    Attributes:
        name: of its class; None: it has none. A class derived from another is "Tumor: Positive".
        kind: annotation, detection or cell.
        polygons: the outline. Coordinates are level-0 pixels.
        nucleus: the outline of a cell's nucleus; empty if there is none.
    """

    name: str | None
    kind: str
    polygons: list[Polygon]
    nucleus: list[Polygon]


class GeoJsonWriter:
    """Writes objects to a file, one after the other; see `write_geojson`."""

    def __init__(self, file: IO[str], slide: str) -> None:
        self._file, self._slide, self._count = file, slide, 0

    def add(
        self,
        polygons: Sequence[Polygon],
        name: str,
        colour: tuple[int, int, int],
        measurements: Mapping[str, float | None],
    ) -> str:
        """Write a detection, and return its id.

        The id depends on the slide and on the number of detections before. `instance_id` is the
        same.

        Args:
            polygons: in level-0 pixels.
            name: of its class.
            colour: of the class, RGB from 0 to 255.
            measurements: by name; those that are None or not finite are left out.
        """
        identifier = instance_id(self._slide, self._count)
        rings = [[_closed(ring) for ring in polygon] for polygon in polygons]
        single = len(rings) == 1
        values = {k: v for k, v in measurements.items() if v is not None and math.isfinite(v)}
        feature = {
            "type": "Feature",
            "id": identifier,
            "geometry": {
                "type": "Polygon" if single else "MultiPolygon",
                "coordinates": rings[0] if single else rings,
            },
            "properties": {
                "objectType": "detection",
                "classification": {"name": name, "color": list(colour)},
                "measurements": values,
            },
        }
        text = json.dumps(feature, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self._file.write((",\n" if self._count else "\n") + text)
        self._count += 1
        return identifier


def instance_id(slide: str, index: int) -> str:
    """Return the id of an instance of a slide, a UUID that depends on nothing else."""
    return str(uuid.uuid5(_NAMESPACE, f"{slide}/{index}"))


def _closed(ring: np.ndarray) -> list[list[float]]:
    """Return the points of a ring, the first one again at the end; whole numbers as such."""
    rounded = np.round(ring, _DECIMALS)
    points = (rounded.astype(np.int64) if (rounded == np.rint(rounded)).all() else rounded).tolist()
    return [*points, points[0]]


@contextlib.contextmanager
def write_geojson(path: Path, slide: str) -> Iterator[GeoJsonWriter]:
    """Write a FeatureCollection, whole or not at all; equal objects give equal bytes.

    Args:
        path: of the file; if its name ends with .gz, it is compressed.
        slide: id of the slide.
    """
    with write_whole(path) as temporary, contextlib.ExitStack() as stack:
        raw = stack.enter_context(temporary.open("wb"))
        binary: Any = raw
        if path.suffix == ".gz":
            # Without name and time, so that the bytes don't depend on them.
            binary = stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0))
        file = stack.enter_context(io.TextIOWrapper(binary, encoding="utf-8", newline="\n"))
        file.write('{"type":"FeatureCollection","features":[')
        yield GeoJsonWriter(file, slide)
        file.write("\n]}\n")


def read_geojson(path: Path, max_bytes: int | None = None) -> list[OutlinedObject]:
    """Return the objects of a file: a FeatureCollection, a list of Features, or a Feature.

    The outline must be a Polygon or MultiPolygon. Points and lines are faults: an object that they
    mark would be taken for background. The objects' children are read, too. TMA cores and tiles are
    skipped. A ring may be open; its last point may equal the first. Ellipses are read as the
    polygons that QuPath writes with them. If the class is missing and `objectType` is not a type of
    QuPath, it is taken as the class.

    Args:
        path: of the file; if its name ends with .gz, it is decompressed.
        max_bytes: of its text; None: any.

    Raises:
        UserError: the file is missing, too large or not JSON, or has other geometries, rings of
            less than three points, or coordinates that are not numbers or outside any slide. All
            faults are listed.
    """
    content = _read_json(path, max_bytes)
    if isinstance(content, dict) and content.get("type") == "FeatureCollection":
        content = content.get("features")
    elif isinstance(content, dict) and content.get("type") == "Feature":
        content = [content]
    if not isinstance(content, list):
        raise UserError(
            f"{path}: not GeoJSON of objects; must be a FeatureCollection, a list of Features or a "
            "Feature"
        )
    objects, faults = [], []
    features = [(f"feature {number}", feature) for number, feature in enumerate(content, 1)]
    features.reverse()
    while features:
        where, feature = features.pop()
        try:
            item, children = _object(feature)
        except ValueError as error:
            faults.append(f"{where}{_id_of(feature)}: {error}")
            continue
        if item is not None:
            objects.append(item)
        named = [(f"{where}, child {number}", child) for number, child in enumerate(children, 1)]
        features += reversed(named)
    if faults:
        raise all_faults(f"{path}: objects that cannot be used:", faults)
    return objects


def _read_json(path: Path, max_bytes: int | None) -> Any:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            data = file.read() if max_bytes is None else file.read(max_bytes + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged, not a whole gzip file ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if max_bytes is not None and len(data) > max_bytes:
        raise UserError(f"{path}: has more than {max_bytes:,} bytes of text")
    try:
        return json.loads(data)
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from None
    except RecursionError:
        raise UserError(f"{path}: not valid JSON (nested too deeply)") from None


def _id_of(feature: Any) -> str:
    identifier = feature.get("id") if isinstance(feature, dict) else None
    return f" (id {_short(identifier)})" if isinstance(identifier, str | int) else ""


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else type(value).__name__
    if isinstance(value, int | float):
        text = f"{value:g}" if isinstance(value, float) or abs(value) < 2**53 else "a huge number"
    text = "".join(character if character.isprintable() else "?" for character in text)
    return repr(f"{text[:40]}…" if len(text) > 40 else text)


def _object(feature: Any) -> tuple[OutlinedObject | None, list[Any]]:
    """Return the object of a Feature, None for a part of the slide, and its children.

    Raises:
        ValueError: the message is the fault.
    """
    if not isinstance(feature, dict) or feature.get("type") != "Feature":
        raise ValueError("is not a Feature")
    properties = feature.get("properties")
    if properties is None:
        properties = {}
    if not isinstance(properties, dict):
        raise ValueError("its properties are not an object")
    children = properties.get("childObjects", properties.get("children"))
    children = children if isinstance(children, list) else []
    identifier = feature.get("id")
    named = [properties.get(key) for key in ("objectType", "object_type", "type")]
    if isinstance(identifier, str) and identifier in _OLD_IDS:
        named.append(identifier)
    kind = next((value for value in named if value is not None), "annotation")
    if not isinstance(kind, str) or not _is_unicode(kind):
        raise ValueError("its objectType is not text")
    if kind in _PARTS:
        return None, children
    name = _class_name(properties.get("classification"))
    if name is None and kind not in _KINDS:
        name = kind.strip() or None
    nucleus = feature.get("nucleusGeometry")
    item = OutlinedObject(
        name=name,
        kind=_KINDS.get(kind, "annotation"),
        polygons=_polygons(feature.get("geometry"), "geometry"),
        nucleus=[] if nucleus is None else _polygons(nucleus, "nucleusGeometry"),
    )
    return item, children


def _class_name(classification: Any) -> str | None:
    if isinstance(classification, dict):
        names = classification.get("names")
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            classification = ": ".join(names)
        else:
            classification = classification.get("name")
    if classification is None:
        return None
    if not isinstance(classification, str) or not _is_unicode(classification):
        raise ValueError("the name of its classification is not text")
    return classification.strip() or None


def _is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8; JSON allows half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _polygons(geometry: Any, what: str) -> list[Polygon]:
    if not isinstance(geometry, dict):
        raise ValueError(f"has no {what}")
    kind, coordinates = geometry.get("type"), geometry.get("coordinates")
    if kind not in ("Polygon", "MultiPolygon"):
        raise ValueError(
            f"its {what} is {_short(kind)}, which has no area; must be a Polygon or MultiPolygon"
        )
    polygons = [coordinates] if kind == "Polygon" else coordinates
    if not isinstance(polygons, list) or not polygons:
        raise ValueError(f"its {what} has no coordinates")
    return [_polygon(polygon, what) for polygon in polygons]


def _polygon(rings: Any, what: str) -> Polygon:
    if not isinstance(rings, list) or not rings:
        raise ValueError(f"a polygon of its {what} has no rings")
    return [_ring(ring, what) for ring in rings]


def _ring(points: Any, what: str) -> np.ndarray:
    if not isinstance(points, list):
        raise ValueError(f"a ring of its {what} is not a list of points")
    for point in points:
        if not isinstance(point, list) or len(point) < 2:
            raise ValueError(f"a point of its {what} does not have x and y")
        for value in point[:2]:
            if type(value) not in (int, float) or value != value:
                raise ValueError(f"a coordinate of its {what} is not a number")
            if abs(value) > MAX_COORDINATE:
                raise ValueError(
                    f"a coordinate of its {what} is {_short(value)}; no slide has more than "
                    f"{MAX_COORDINATE:.0f} pixels a side"
                )
    if len(points) > 1 and points[0][:2] == points[-1][:2]:
        points = points[:-1]
    if len({tuple(point[:2]) for point in points}) < 3:
        raise ValueError(f"a ring of its {what} has less than three different points")
    return np.array([point[:2] for point in points], np.float64)


def rasterise(
    polygons: Sequence[Polygon], height: int, width: int
) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the pixels of an image with their centre in one of the polygons.

    A point is in a polygon if a ray from it crosses the rings an odd number of times. So holes are
    outside, and a ring that crosses itself has holes. A centre on a left or upper edge is inside,
    on a right or lower edge outside: each pixel belongs to one of two polygons that share an edge.

    Args:
        polygons: x and y in pixels of the image; they may leave it.
        height, width: of the image.

    Returns:
        The mask in its smallest box, (rows, columns) bool, and its first row and column. An empty
        mask has the shape (0, 0).
    """
    points = np.concatenate([ring for polygon in polygons for ring in polygon])
    low = np.clip(np.floor(points.min(axis=0)), 0, (width, height)).astype(int)
    high = np.clip(np.ceil(points.max(axis=0)), 0, (width, height)).astype(int)
    # Another order of the axes: rows, columns.
    corner, shape = low[::-1], (high - low)[::-1]
    mask = np.zeros(shape, bool)
    for polygon in polygons:
        mask |= _inside(polygon, corner, shape)
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return np.zeros((0, 0), bool), (0, 0)
    crop = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return crop, (int(corner[0] + rows[0]), int(corner[1] + columns[0]))


def _inside(polygon: Polygon, corner: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Return which pixels of a part of an image, with this corner and shape, are in a polygon."""
    starts = np.concatenate(polygon)
    ends = np.concatenate([np.roll(ring, -1, axis=0) for ring in polygon])
    # Both polygons at an edge compute with it from top to bottom, so that they round alike.
    down = (starts[:, 1] <= ends[:, 1])[:, None]
    starts, ends = np.where(down, starts, ends), np.where(down, ends, starts)
    # The first row with its centre on or below each end of an edge.
    first, last = (
        np.clip(np.ceil(y - 0.5) - corner[0], 0, shape[0]).astype(np.int64)
        for y in (starts[:, 1], ends[:, 1])
    )
    counts = last - first
    changes = np.zeros((shape[0], shape[1] + 1), np.uint8)
    # Parts of the edges, to bound the memory.
    limits = np.searchsorted(np.cumsum(counts), np.arange(0, counts.sum(), _CROSSINGS), "right")
    for begin, end in pairwise([*limits.tolist(), len(counts)]):
        edges = np.arange(begin, end)
        edge = np.repeat(edges, counts[edges])
        before = np.cumsum(counts[edges]) - counts[edges]
        row = np.arange(len(edge)) - np.repeat(before - first[edges], counts[edges])
        (x1, y1), (x2, y2) = starts[edge].T, ends[edge].T
        crossing = x1 + (row + corner[0] + 0.5 - y1) * (x2 - x1) / (y2 - y1)
        # The first column with its centre on or right of the crossing.
        column = np.clip(np.ceil(crossing - 0.5) - corner[1], 0, shape[1]).astype(np.int64)
        np.bitwise_xor.at(changes, (row, column), 1)
    return np.bitwise_xor.accumulate(changes, axis=1)[:, :-1].view(bool)
