"""The page of one slide: its calls, its heat map, and the tiles that led to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.report import fates, gallery, heatmap
from gigatile.report.in_cohort import InCohort, Match
from gigatile.report.inputs import (
    CohortSlide,
    ScoredSlide,
    SlideTiles,
    read_recorded,
    read_slide_tiles,
)
from gigatile.report.pages import Neighbours, neighbours_of, render
from gigatile.report.provenance import checksum
from gigatile.slides.state import SlideState, TileGrid

# Up to so many classes, each has its tiles on the page; beyond, the called and the true one have.
CLASSES_SHOWN = 4
# Files of a slide's tiling that its page is drawn from, and what they show.
KINDS = {
    "json": "tiles kept, scale",
    "jpg": "overviews",
    "parquet": "tiles dropped and marked",
    "tfrecord": "pictures of tiles",
}


@dataclass(frozen=True)
class SlideFiles:
    """Where the files behind the slide pages lie, and what they are called in the run's folder."""

    tiles_dir: Path
    scores: Path
    tiles_name: str = "tiles"
    scores_name: str = "evaluation/tiles.parquet"

    def of(self, slide: str, kind: str) -> Path:
        """Return tiles/<slide>.<kind>."""
        return self.tiles_dir / f"{slide}.{kind}"


def write_slide_pages(
    scored: Sequence[ScoredSlide],
    classes: Sequence[str],
    files: SlideFiles,
    recorded: Mapping[str, str],
    top_tiles: int,
    folder: Path,
    in_cohort: InCohort | None = None,
) -> dict[str, str]:
    """Write <slide>.html to `folder` for each slide, one after the other.

    Args:
        recorded: the checksum of each slide's records, as its table of slides tells it.
        in_cohort: of new slides, which of them are in the cohort.

    Returns:
        The checksums of the slides' files by their names in the run.
    """
    sums: dict[str, str] = {}
    for one, neighbours in zip(scored, neighbours_of([s.slide for s in scored]), strict=True):
        matches = in_cohort.of(one.slide) if in_cohort else []
        page, mine = slide_page(
            one, neighbours, classes, files, top_tiles, recorded.get(one.slide), matches
        )
        (folder / f"{one.slide}.html").write_text(page, encoding="utf-8")
        sums |= mine
    return sums


def slide_page(
    scored: ScoredSlide,
    neighbours: Neighbours,
    classes: Sequence[str],
    files: SlideFiles,
    top_tiles: int,
    records_sha256: str | None = None,
    matches: Sequence[Match] = (),
) -> tuple[str, dict[str, str]]:
    """Render the page of one slide; nothing of it is held once it is returned.

    Args:
        scored: the slide's row in slides.tsv.
        top_tiles: how many tiles of each shown class.
        records_sha256: the checksum that its record file must have, where one was written down.
        matches: of a new slide, the slides of the cohort that have something in common with it.

    Returns:
        The page, and the checksums of the slide's files by their names in the run.

    Raises:
        UserError: a file is missing, damaged, or does not belong to the others.
    """
    slide = scored.slide
    state = read_state(files.of(slide, "json"), slide)
    grid, width, height = _shape(state, files.of(slide, "json"))
    tiles = read_slide_tiles(files.scores, slide, list(classes), scored.tiles)
    overview = gallery.read_overview(files.of(slide, "jpg"), width, height)
    sums = {f"{files.tiles_name}/{slide}.{kind}": checksum(files.of(slide, kind)) for kind in KINDS}
    found = sums[f"{files.tiles_name}/{slide}.tfrecord"]
    if records_sha256 is not None and found != records_sha256:
        raise UserError(
            f"{files.of(slide, 'tfrecord')}: its SHA-256 is {found[:12]}…, that of its slide table "
            f"{records_sha256[:12]}…; one of the two is stale"
        )
    layers = _layers(tiles, grid, f"{files.scores}: slide {slide!r}")
    found_fates = fates.read_fates(files.of(slide, "parquet"), grid)
    galleries = _galleries(scored, classes, tiles, grid, files.of(slide, "tfrecord"), top_tiles)
    page = render(
        "slide.html.j2",
        scored=scored,
        matches=matches,
        state=state,
        classes=classes,
        width=width,
        height=height,
        overview=heatmap.data_uri(overview, "image/jpeg"),
        layers=layers,
        fates=fates.fate_rows(found_fates),
        fates_layer=heatmap.data_uri(fates.paint_fates(found_fates, grid), "image/png"),
        box=heatmap.placement(grid),
        called=classes.index(scored.call_mean),
        colour_bar=heatmap.data_uri(heatmap.colour_bar(), "image/png"),
        scale_bar=heatmap.scale_bar(width, state.mpp) if state.mpp else None,
        votes=tiles.votes().tolist(),
        galleries=galleries,
        neighbours=neighbours,
        sums=sums,
        scores_name=files.scores_name,
    )
    return page, sums


def read_state(path: Path, slide: str) -> SlideState:
    """Read the state of a slide; it must be that slide's."""
    state = read_recorded(SlideState, path)
    if state.slide != slide:
        raise UserError(f"{path}: is the state of slide {state.slide!r}, not of {slide!r}")
    return state


def check_state(row: CohortSlide, folder: Path) -> SlideState:
    """Read the state of a slide, which must be the state that tiles.tsv was made from.

    Raises:
        UserError: it is missing, damaged or another.
    """
    path = folder / f"{row.slide}.json"
    state = read_state(path, row.slide)
    if (state.state, state.tiles.kept, state.records.sha256) != (row.state, row.tiles, row.sha256):
        raise UserError(
            f"{path}: tiles.tsv has another state, number of tiles or SHA-256 of the tiles; one of "
            "the two is stale"
        )
    return state


def _shape(state: SlideState, path: Path) -> tuple[TileGrid, int, int]:
    source = state.source
    if state.state != "tiled" or not state.grid or not source.width or not source.height:
        raise UserError(f"{path}: slide {state.slide!r} gave no tiles, yet it was scored")
    return state.grid, source.width, source.height


def _layers(tiles: SlideTiles, grid: TileGrid, whose: str) -> list[str]:
    column, row = heatmap.cells(tiles, grid, whose)
    return [
        heatmap.data_uri(heatmap.paint(scores, column, row, grid), "image/png")
        for scores in tiles.scores.T
    ]


def _galleries(
    scored: ScoredSlide,
    classes: Sequence[str],
    tiles: SlideTiles,
    grid: TileGrid,
    records: Path,
    top_tiles: int,
) -> list[dict[str, Any]]:
    """Gather the highest tiles of the shown classes, the called one first; each tile once read."""
    roles = {
        "called by the mean": scored.call_mean,
        "called by the vote": scored.call_vote,
        "truth": scored.label,
    }
    order = [*dict.fromkeys(name for name in roles.values() if name in classes)]
    if len(classes) <= CLASSES_SHOWN:
        order += [name for name in classes if name not in order]
    top = {name: gallery.highest(tiles, classes.index(name), top_tiles) for name in order if name}
    places = {i: (int(tiles.x[i]), int(tiles.y[i])) for chosen in top.values() for i in chosen}
    images = gallery.pick(records, set(places.values()))
    found = []
    for name, chosen in top.items():
        which = classes.index(name)
        shown = [
            {
                "x": places[i][0],
                "y": places[i][1],
                "extent": grid.extent,
                "score": float(tiles.scores[i, which]),
                "image": heatmap.data_uri(images[places[i]], "image/jpeg"),
            }
            for i in chosen
        ]
        mine = [role for role, one in roles.items() if one == name]
        found.append({"name": name, "which": which, "tiles": shown, "roles": mine})
    return found
