"""The page of a slide: predicted classes, heat map, and the tiles with the highest scores."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
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
    "{records}/{id}.jpg": "Overviews of slides",
    "{records}/{id}.parquet": "Slide pages: tiles dropped and marked",
    "{records}/{id}.tfrecord": "Slide pages: pictures of tiles",
}
SlidePageInputs = PageInputs[ScoredSlide, TrainedClassifier]


def slide_pages(inputs: SlidePageInputs) -> WritePage:
    """Return the function that renders the page of a slide."""
    return partial(_page, inputs)


def _page(
    inputs: SlidePageInputs, slide: str, neighbours: Neighbours
) -> tuple[str, dict[str, str]]:
    """Return the page of a slide, and the checksums of its files by their names in the run."""
    scored, classes = inputs.scored[slide], inputs.model.classes
    assert scored is not None, "slides have scores"
    files = inputs.files.expand(list(FILES), slide)
    state_path, overview_path, status_path, records_path = files.values()
    state = read_state_of(inputs.rows[slide], inputs.files.records)
    grid, width, height = _shape(state, state_path)
    scores_path = inputs.files.results / "tiles.parquet"
    tiles = read_tile_scores(scores_path, slide, classes, scored.tiles)
    overview = gallery.read_overview(overview_path, width, height)
    sums = {name: checksum(path) for name, path in files.items()}
    (*_, actual), expected = sums.values(), inputs.rows[slide].sha256
    if actual != expected:
        raise UserError(
            f"{records_path}: its SHA-256 is {actual[:12]}…, but the table of slides has "
            f"{expected[:12]}…; one of the two is out of date"
        )
    status = tile_status.read_status(status_path, grid)
    page = render(
        TEMPLATE,
        scored=scored,
        matches=inputs.matches(slide),
        state=state,
        classes=classes,
        width=width,
        height=height,
        overview=data_uri(overview, "image/jpeg"),
        layers=_layers(tiles, grid, f"{scores_path}: slide {slide!r}"),
        faults=tile_status.count_faults(status),
        status_layer=data_uri(tile_status.paint_status(status, grid), "image/png"),
        box=heatmap.placement(grid),
        predicted=classes.index(scored.call_mean),
        colour_bar=data_uri(heatmap.colour_bar(), "image/png"),
        scale_bar=scale_bar(width, state.mpp) if state.mpp else None,
        mpp_source=mpp_source(state.mpp_from),
        votes=tiles.votes().tolist(),
        galleries=_galleries(
            scored, classes, tiles, grid, records_path, inputs.options.get("top_tiles", TOP_TILES)
        ),
        neighbours=neighbours,
        sums=sums,
        scores_name=f"{inputs.files.results_name}/tiles.parquet",
    )
    return page, sums


def _shape(state: SlideState, path: Path) -> tuple[TileGrid, int, int]:
    source = state.source
    if state.state != "tiled" or not state.grid or not source.width or not source.height:
        raise UserError(f"{path}: slide {state.slide!r} has no tiles, but it was scored")
    return state.grid, source.width, source.height


def _layers(tiles: TileScores, grid: TileGrid, source: str) -> list[str]:
    column, row = heatmap.cells(tiles, grid, source)
    return [
        data_uri(heatmap.paint(scores, column, row, grid), "image/png") for scores in tiles.scores.T
    ]


def _galleries(
    scored: ScoredSlide,
    classes: Sequence[str],
    tiles: TileScores,
    grid: TileGrid,
    records: Path,
    top_tiles: int,
) -> list[dict[str, Any]]:
    """Return the tiles with the highest scores of each shown class, the predicted class first."""
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
