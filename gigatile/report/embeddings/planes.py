"""The sections with slides and with tiles in the plane of their first two principal components."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.evaluation.baselines import Baselines, Component, TileComponents
from gigatile.json_models import read_model
from gigatile.report.embeddings.baselines import FILE, TEMPLATES
from gigatile.report.pages import data_uri
from gigatile.report.slides import gallery
from gigatile.report.task_report import Content, Section
from gigatile.report.unit_pages import TILE_FOLDER

# Side of a plot in the units of its SVG.
SIDE = 200
# Cells along a side of the plane, each with the picture of a tile, and the most bytes of a picture.
CELLS, PICTURE_BYTES = 8, 4000
# Sites with a plot: those with the most slides.
MOST_SITES = 8


@dataclass(frozen=True)
class Panel:
    """A plot in which the slides of a label or a site are marked.

    Attributes:
        title: the label or site.
        marked, others: the slides, each with x, y and its id; those of test are marked first.
    """

    title: str
    marked: Sequence[tuple[str, str, str]]
    others: Sequence[tuple[str, str, str]]


def _components(run: Any) -> Content:
    baselines = read_model(Baselines, run.files["evaluation_dir"] / FILE)
    sites = {row.id: row.site for row in run.cohort if row.site}
    by_site: dict[str, int] = {}
    for site in sites.values():
        by_site[site] = by_site.get(site, 0) + 1
    largest = sorted(by_site, key=lambda site: (-by_site[site], site))[:MOST_SITES]
    labels = {each.slide: each.label for each in baselines.components}
    return Content(
        {
            "labels": _panels(baselines.components, labels, baselines.classes),
            "sites": _panels(baselines.components, sites, sorted(largest)),
            "side": SIDE,
        }
    )


def _tiles(run: Any) -> Content | None:
    baselines = read_model(Baselines, run.files["evaluation_dir"] / FILE)
    if not baselines.tiles:
        return None
    points = tile_points(baselines.tiles)
    sites = {row.id: row.site for row in run.cohort if row.site}
    labels = {each.slide: each.label for each in baselines.tiles}
    names = sorted({sites[each.slide] for each in baselines.tiles if each.slide in sites})
    return Content(
        {
            "labels": _tile_panels(points, labels, baselines.classes),
            "sites": _tile_panels(points, sites, names[:MOST_SITES]),
            # Tiles that another program embedded have no pictures.
            "pictures": []
            if run.model.encoder.get("embedded_with")
            else _pictures(points, run.files["records_dir"].with_name(TILE_FOLDER)),
            "count": len(points),
            "side": SIDE,
            "cell": SIDE / CELLS,
        }
    )


@dataclass(frozen=True)
class TilePoint:
    """A tile in the plane.

    Attributes:
        slide: its id.
        corner: x and y in pixels of level 0.
        x, y: from 0 to `SIDE`; y is down.
    """

    slide: str
    corner: tuple[int, int]
    x: float
    y: float


def tile_points(tiles: Sequence[TileComponents]) -> list[TilePoint]:
    """Return the tiles of all slides in the plane."""
    columns: list[list[float]] = [[], []]
    names: list[tuple[str, tuple[int, int]]] = []
    for some in tiles:
        names += [(some.slide, corner) for corner in zip(some.x, some.y, strict=True)]
        columns[0] += some.first
        columns[1] += some.second
    across, up = (_scaled(column) for column in columns)
    return [
        TilePoint(slide, corner, x, SIDE - y)
        for (slide, corner), x, y in zip(names, across, up, strict=True)
    ]


def _tile_panels(
    points: Sequence[TilePoint], groups: Mapping[str, str], names: Sequence[str]
) -> list[tuple[str, str, str, int]]:
    """Return title, marked and other tiles as paths of dots, and the number of marked tiles."""
    panels = []
    for name in names:
        marked = [point for point in points if groups.get(point.slide) == name]
        others = [point for point in points if groups.get(point.slide) != name]
        panels.append((name, _dots(marked), _dots(others), len(marked)))
    return panels


def _dots(points: Sequence[TilePoint]) -> str:
    return "".join(f"M{point.x:.4g} {point.y:.4g}h0" for point in points)


def _pictures(points: Sequence[TilePoint], tiles: Path) -> list[tuple[str, str, str, str]]:
    """Return x and y of a cell, the slide and the picture of the tile next to its centre."""
    size = SIDE / CELLS
    nearest: dict[tuple[int, int], tuple[float, TilePoint]] = {}
    for point in points:
        cell = min(int(point.x / size), CELLS - 1), min(int(point.y / size), CELLS - 1)
        centre = tuple((number + 0.5) * size for number in cell)
        distance = (point.x - centre[0]) ** 2 + (point.y - centre[1]) ** 2
        if cell not in nearest or distance < nearest[cell][0]:
            nearest[cell] = distance, point
    by_slide: dict[str, set[tuple[int, int]]] = {}
    for _, point in nearest.values():
        by_slide.setdefault(point.slide, set()).add(point.corner)
    images = {
        slide: gallery.pick(tiles / f"{slide}.tfrecord", corners, PICTURE_BYTES)
        for slide, corners in by_slide.items()
    }
    return [
        (
            f"{column * size:.4g}",
            f"{row * size:.4g}",
            point.slide,
            data_uri(images[point.slide][point.corner], "image/jpeg"),
        )
        for (column, row), (_, point) in sorted(nearest.items())
    ]


def _panels(
    components: Sequence[Component], groups: Mapping[str, str], names: Sequence[str]
) -> list[Panel]:
    points = _points(components)
    return [
        Panel(
            name,
            [point for point in points if groups.get(point[2]) == name],
            [point for point in points if groups.get(point[2]) != name],
        )
        for name in names
    ]


def _points(components: Sequence[Component]) -> list[tuple[str, str, str]]:
    """Return x, y, both from 0 to `SIDE`, and the id of each slide; y is down."""
    if not components:
        return []
    scaled = map(_scaled, zip(*(each.values for each in components), strict=True))
    return [
        (f"{x:.4g}", f"{SIDE - y:.4g}", each.slide)
        for x, y, each in zip(*scaled, components, strict=True)
    ]


def _scaled(axis: Sequence[float]) -> list[float]:
    low, high = min(axis), max(axis)
    width = high - low or 1
    return [SIDE * (value - low) / width for value in axis]


COMPONENTS_SECTION = Section(
    "embeddings",
    "Embeddings in two dimensions",
    TEMPLATES / "components.html.j2",
    _components,
    "Embeddings",
)
TILES_SECTION = Section(
    "tiles",
    "Tiles in two dimensions",
    TEMPLATES / "tiles.html.j2",
    _tiles,
    "Tiles",
)
