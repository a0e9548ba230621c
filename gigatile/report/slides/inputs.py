"""Read and check the tables, scores, states and settings of slides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from gigatile.errors import UserError
from gigatile.json_models import read_model
from gigatile.report.inputs import (
    CohortRow,
    ScoredRow,
    TrainedModel,
    bad_cell,
    whole_number,
)
from gigatile.report.pages import check_ids
from gigatile.slides.state import SlideState, TileGrid
from gigatile.tables import read_table

NewSlide = TypeVar("NewSlide", bound=ScoredRow)


class TrainedClassifier(TrainedModel):
    """model/settings.json."""

    classes: list[str]
    tiles: dict[str, Any]
    scores: dict[str, Any] | None = None

    def settings(self) -> dict[str, Any]:
        """Return the sections of the settings."""
        scores = {"scores": self.scores} if self.scores else {}
        return {"tiles": self.tiles, "train": self.train, **scores}


@dataclass(frozen=True)
class ScoredSlide(ScoredRow):
    """A row of slides.tsv.

    Attributes:
        scores: of each class; of a tile classifier, the mean score of the tiles.
        call_mean: the class with the highest score.
        call_vote: the class with the highest score on most tiles; None if tiles do not vote.
    """

    tiles: int
    scores: Mapping[str, float]
    call_mean: str
    call_vote: str | None = None


def read_scored(
    path: Path, model: TrainedClassifier, labelled: bool = True, votes: bool = True
) -> list[ScoredSlide]:
    """Read slides.tsv, in its order.

    Args:
        path: the table.
        model: the classifier.
        labelled: False for new slides, which have no label.
        votes: whether tiles vote.

    Raises:
        UserError: the table is missing or damaged, or a score is not from 0 to 1.
    """
    classes = model.classes
    predicted = ["call_mean"] + ["call_vote"] * votes
    columns = ["slide", "tiles", *(f"p_{name}" for name in classes), *predicted]
    slides = []
    for number, row in enumerate(read_table(path, columns + ["patient", "label"] * labelled), 2):
        for name in predicted:
            if row[name] not in classes:
                raise UserError(
                    f"{path}, row {number}: {name} is {row[name]!r}, not a class of the model"
                )
        slides.append(
            ScoredSlide(
                row["slide"],
                row.get("patient", ""),
                row["label"] if labelled else None,
                whole_number(path, number, row, "tiles"),
                {name: _score(path, number, row, f"p_{name}") for name in classes},
                row["call_mean"],
                row["call_vote"] if votes else None,
            )
        )
    return slides


def read_new(
    folder: Path, model: TrainedClassifier, rows: Sequence[CohortRow], votes: bool = True
) -> dict[str, ScoredSlide]:
    """Read the scores of new slides by id, from the folder of predictions.

    Raises:
        UserError: the table is missing or damaged, or has a slide that is not in tiles.tsv.
    """
    path = folder / "slides.tsv"
    return by_known_id(read_scored(path, model, labelled=False, votes=votes), path, rows)


def by_known_id(
    slides: Sequence[NewSlide], path: Path, rows: Sequence[CohortRow]
) -> dict[str, NewSlide]:
    """Return the rows of a table of new slides by id.

    Raises:
        UserError: a slide is there twice, or is not in the rows of tiles.tsv.
    """
    check_ids([slide.id for slide in slides], path)
    scored = {slide.id: slide for slide in slides}
    if unknown := sorted(scored.keys() - {row.id for row in rows}):
        raise UserError(f"{path}: slides that are not in tiles.tsv: {', '.join(unknown)}")
    return scored


@dataclass(frozen=True)
class TileScores:
    """The scored tiles of a slide, sorted by row and column.

    Attributes:
        x, y: (n,) int64, top-left corners in pixels of level 0.
        scores: (n, classes) float64, each from 0 to 1.
    """

    x: np.ndarray
    y: np.ndarray
    scores: np.ndarray

    def votes(self) -> np.ndarray:
        """Return the number of tiles with the highest score for each class: (classes,) int64."""
        return np.bincount(self.scores.argmax(axis=1), minlength=self.scores.shape[1])


def read_tile_scores(path: Path, slide: str, classes: list[str], expected: int) -> TileScores:
    """Read the scored tiles of a slide, without loading those of other slides.

    Raises:
        UserError: the file is missing or damaged, its number of tiles is not `expected`, or a score
            is not from 0 to 1.
    """
    columns = ["x", "y", *(f"p_{name}" for name in classes)]
    try:
        table = ds.dataset(path, format="parquet").to_table(
            columns=columns, filter=ds.field("slide") == slide
        )
        x, y = (np.asarray(table[name], np.int64) for name in ("x", "y"))
        scores = np.stack([np.asarray(table[name], np.float64) for name in columns[2:]], axis=1)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError, KeyError, TypeError, ValueError) as error:
        reason = str(error).split("\n")[0].replace(str(path), Path(path).name)
        raise UserError(f"{path}: damaged, or not a table of scored tiles ({reason})") from None
    if len(x) != expected:
        raise UserError(
            f"{path}: {len(x)} tiles of slide {slide!r}, but slides.tsv counts {expected}; one of "
            "the two is out of date"
        )
    if not ((scores >= 0) & (scores <= 1)).all():
        raise UserError(f"{path}: slide {slide!r} has a score that is not a number from 0 to 1")
    order = np.lexsort((x, y))
    return TileScores(x[order], y[order], scores[order])


def read_compared_scores(
    run: Path, slide: str, classes: list[str]
) -> tuple[TileScores, TileGrid] | None:
    """Read the scores that the tile classifier of another run gave to the tiles of a slide.

    Args:
        run: the folder of the other run.
        slide: its id; None is returned if the other run did not score it.
        classes: of this run.

    Returns:
        The scores and the tile grid, which may differ from the grid of this run.

    Raises:
        UserError: a file is missing or damaged, or the other run has other classes.
    """
    described = run / "model/settings.json"
    others = read_model(TrainedClassifier, described).classes
    if others != classes:
        raise UserError(
            f"{described}: has the classes {', '.join(others)}, but this run has "
            f"{', '.join(classes)}; set report.compare to a run with the same labels"
        )
    scored = read_table(run / "evaluation/slides.tsv", ["slide", "tiles"])
    tiles = {row["slide"]: row for row in scored}
    if slide not in tiles:
        return None
    state = run / f"tiles/{slide}.json"
    grid = read_model(SlideState, state).grid
    if grid is None:
        raise UserError(f"{state}: has no tile grid, but the slide was scored")
    path = run / "evaluation/tiles.parquet"
    return read_tile_scores(path, slide, classes, int(tiles[slide]["tiles"])), grid


def read_state_of(row: CohortRow, folder: Path, kind: type[SlideState] = SlideState) -> SlideState:
    """Read the state of a slide, which must match the row of tiles.tsv.

    Args:
        row: of the slide.
        folder: of the states.
        kind: of the state.

    Raises:
        UserError: it is missing, damaged, or does not match.
    """
    path = folder / f"{row.id}.json"
    state = read_model(kind, path)
    if state.slide != row.id:
        raise UserError(f"{path}: contains slide {state.slide!r}, expected {row.id!r}")
    if (state.state, state.tiles.kept, state.records.sha256) != (
        row.state,
        row.records,
        row.sha256,
    ):
        raise UserError(
            f"{path}: tiles.tsv has another state, number of tiles or SHA-256 of the records; one "
            "of the two is out of date"
        )
    return state


def mpp_source(name: str | None) -> str:
    """Return the source of a slide's scale in words."""
    words = {
        "sheet": "the sample sheet",
        "file": "the slide's file",
        "resolution": "the TIFF file's resolution",
        "objective": "its objective, by the table tiles.objectives",
    }
    return words[name] if name else "–"


def _score(path: Path, number: int, row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise bad_cell(path, number, row, column, "a number from 0 to 1")
    return value
