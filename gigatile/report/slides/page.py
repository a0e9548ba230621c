"""The page of a slide: predicted classes, heat map, and the tiles with the highest scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.report.inputs import CohortRow
from gigatile.report.pages import Neighbours, data_uri, render, scale_bar
from gigatile.report.provenance import checksum
from gigatile.report.slides import gallery, heatmap, tile_status
from gigatile.report.slides.inputs import (
    ScoredSlide,
    TileScores,
    TrainedClassifier,
    mpp_source,
    read_state_of,
    read_tile_scores,
)
from gigatile.report.unit_pages import PageInputs, WritePage
from gigatile.slides.state import SlideState, TileGrid

TEMPLATE = Path(__file__).parent / "templates/slide.html.j2"
# With more classes, only the predicted ones and the label have a gallery on the page.
CLASSES_SHOWN = 4
# Tiles of a gallery.
TOP_TILES = 8
# The files of a slide, and what its page shows of them.
FILES = {
    "{records}/{id}.json": "Slide pages: tiles kept, scale",
    "{tiles}/{id}.jpg": "Overviews of slides",
    "{tiles}/{id}.parquet": "Slide pages: tiles dropped and marked",
    "{tiles}/{id}.tfrecord": "Slide pages: pictures of tiles",
}
SlidePageInputs = PageInputs[ScoredSlide, TrainedClassifier]


@dataclass(frozen=True)
class Layer:
    """A layer of the heat map: its name, what it shows, a picture (data URI) and where it lies."""

    name: str
    title: str
    image: str
    box: heatmap.Box


@dataclass(frozen=True)
class MapTexts:
    """Texts of a page.

    Attributes:
        predictions: the title of each prediction, by its attribute in `ScoredSlide`.
        score: what the score of a slide is.
        map: what the heat map shows.
        gallery: what the score of a tile in a gallery is.
    """

    predictions: Mapping[str, str]
    score: str
    map: str
    gallery: str


@dataclass(frozen=True)
class SlideMap:
    """The heat map of a slide, and the scores of its tiles.

    Attributes:
        tiles: scores of the stored tiles, for the galleries.
        layers: one for each class, in their order; then others.
        scores_name: the file with the scores, by its name in the run.
        texts: what the map shows, for the page.
        compared: the comparison with another run; None: none.
    """

    tiles: TileScores
    layers: Sequence[Layer]
    scores_name: str
    texts: MapTexts
    compared: Any = None


# Reads the heat map of a slide; takes the inputs of the pages, its row, grid and tile status.
ReadMap = Callable[[SlidePageInputs, ScoredSlide, TileGrid, tile_status.TileStatus], SlideMap]

# Reads the state of a slide, which must match its row; takes the row and the folder of the states.
ReadState = Callable[[CohortRow, Path], SlideState]

_TILE_TEXTS = MapTexts(
    predictions={
        "call_mean": "Predicted by the mean score of the tiles",
        "call_vote": "Predicted by the majority vote of the tiles",
    },
    score="Mean score",
    map="One square for each scored tile",
    gallery="its score",
)


def read_tile_map(
    inputs: SlidePageInputs, scored: ScoredSlide, grid: TileGrid, status: tile_status.TileStatus
) -> SlideMap:
    """Read the scores of a tile classifier."""
    classes = inputs.model.classes
    path = inputs.files.results / "tiles.parquet"
    tiles = read_tile_scores(path, scored.id, classes, scored.tiles)
    layers = tile_layers(tiles, classes, grid, f"{path}: slide {scored.id!r}")
    return SlideMap(tiles, layers, f"{inputs.files.results_name}/tiles.parquet", _TILE_TEXTS)


def tile_layers(
    tiles: TileScores, classes: Sequence[str], grid: TileGrid, source: str
) -> list[Layer]:
    """Return a layer of the scores of tiles for each class."""
    column, row = heatmap.cells(tiles, grid, source)
    return [
        Layer(
            name,
            f"Scores of {name}",
            data_uri(heatmap.paint(scores, column, row, grid), "image/png"),
            heatmap.placement(grid),
        )
        for name, scores in zip(classes, tiles.scores.T, strict=True)
    ]


def slide_pages(
    inputs: SlidePageInputs,
    read_map: ReadMap = read_tile_map,
    patterns: Mapping[str, str] = FILES,
    read_state: ReadState = read_state_of,
) -> WritePage:
    """Return the function that renders the page of a slide, from the files of these patterns."""
    return partial(_page, inputs, read_map, list(patterns), read_state)


def _page(
    inputs: SlidePageInputs,
    read_map: ReadMap,
    patterns: Sequence[str],
    read_state: ReadState,
    slide: str,
    neighbours: Neighbours,
) -> tuple[str, dict[str, str]]:
    """Return the page of a slide, and the checksums of its files by their names in the run."""
    scored, classes = inputs.scored[slide], inputs.model.classes
    assert scored is not None, "slides have scores"
    files = inputs.files.expand(patterns, slide)
    state_path, overview_path, status_path, records_path, *_ = files.values()
    state = read_state(inputs.rows[slide], inputs.files.records)
    grid, width, height = _shape(state, state_path)
    overview = gallery.read_overview(overview_path, width, height)
    sums = {name: checksum(path) for name, path in files.items()}
    (_, _, _, actual, *_), expected = sums.values(), state.sha256_of_tiles
    if actual != expected:
        raise UserError(
            f"{records_path}: its SHA-256 is {actual[:12]}…, but {state_path.name} has "
            f"{expected[:12]}…; one of the two is out of date"
        )
    status = tile_status.read_status(status_path, grid)
    shown = read_map(inputs, scored, grid, status)
    tiles = shown.tiles
    viewer = inputs.options.get("viewer")
    page = render(
        TEMPLATE,
        scored=scored,
        viewer=viewer(slide) if viewer else None,
        matches=inputs.matches(slide),
        appearance=inputs.appearance(slide),
        state=state,
        classes=classes,
        width=width,
        height=height,
        overview=data_uri(overview, "image/jpeg"),
        shown=shown,
        layers=shown.layers,
        faults=tile_status.count_faults(status),
        status_layer=data_uri(tile_status.paint_status(status, grid), "image/png"),
        box=heatmap.placement(grid),
        predicted=classes.index(scored.call_mean),
        colour_bar=data_uri(heatmap.colour_bar(), "image/png"),
        scale_bar=scale_bar(width, state.mpp) if state.mpp else None,
        mpp_source=mpp_source(state.mpp_from),
        votes=None if scored.call_vote is None else tiles.votes().tolist(),
        # Without a reader, another program embedded the tiles: there are no pictures of them.
        galleries=_galleries(
            scored, classes, tiles, grid, records_path, inputs.options.get("top_tiles", TOP_TILES)
        )
        if state.reading
        else [],
        neighbours=neighbours,
        sums=sums,
    )
    return page, sums


def _shape(state: SlideState, path: Path) -> tuple[TileGrid, int, int]:
    source = state.source
    if state.state != "tiled" or not state.grid or not source.width or not source.height:
        raise UserError(f"{path}: slide {state.slide!r} has no tiles, but it was scored")
    return state.grid, source.width, source.height


def _galleries(
    scored: ScoredSlide,
    classes: Sequence[str],
    tiles: TileScores,
    grid: TileGrid,
    records: Path,
    top_tiles: int,
) -> list[dict[str, Any]]:
    """Return the tiles with the highest scores of each shown class, the predicted class first."""
    roles = {"predicted": scored.call_mean, "label": scored.label}
    if scored.call_vote is not None:
        roles = {
            "predicted by mean score": scored.call_mean,
            "predicted by majority vote": scored.call_vote,
            "label": scored.label,
        }
    shown = [*dict.fromkeys(name for name in roles.values() if name in classes)]
    if len(classes) <= CLASSES_SHOWN:
        shown += [name for name in classes if name not in shown]
    top = {name: gallery.highest(tiles, classes.index(name), top_tiles) for name in shown if name}
    corners = {i: (int(tiles.x[i]), int(tiles.y[i])) for chosen in top.values() for i in chosen}
    images = gallery.pick(records, set(corners.values()))
    galleries = []
    for name, chosen in top.items():
        number = classes.index(name)
        pictures = [
            {
                "x": corners[i][0],
                "y": corners[i][1],
                "extent": grid.extent,
                "score": float(tiles.scores[i, number]),
                "image": data_uri(images[corners[i]], "image/jpeg"),
            }
            for i in chosen
        ]
        class_roles = [role for role, role_class in roles.items() if role_class == name]
        galleries.append({"name": name, "number": number, "tiles": pictures, "roles": class_roles})
    return galleries
