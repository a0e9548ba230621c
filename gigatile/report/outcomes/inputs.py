"""Read the predictions, the metrics and the model of a run on outcomes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.cohort.outcomes import OUTCOME_SHEET, Outcome, parse_outcome
from gigatile.cohort.sheet import Member
from gigatile.cohort.sheet_reading import read_sheet as read_rows
from gigatile.errors import UserError
from gigatile.evaluation.outcomes import OutcomeMetrics
from gigatile.json_models import read_model
from gigatile.report.inputs import CohortRow, ScoredRow, TrainedModel, bad_cell, whole_number
from gigatile.report.slides.inputs import by_known_id
from gigatile.report.task_report import Run
from gigatile.slides.state import SlideState
from gigatile.tables import read_table


class OutcomePredictor(TrainedModel):
    """The part of model/settings.json that all models of outcomes have."""

    tiles: dict[str, Any]
    outcome: dict[str, Any]


class EmbeddingPredictor(OutcomePredictor):
    """model/settings.json of a model of embeddings."""

    encoder: dict[str, Any]

    def settings(self) -> dict[str, Any]:
        """Return the sections of the settings."""
        return {"tiles": self.tiles, "encoder": self.encoder, "train": self.train}


class WholeSlidePredictor(OutcomePredictor):
    """model/settings.json of a model of whole slides."""

    whole_slides: dict[str, Any]

    def settings(self) -> dict[str, Any]:
        """Return the sections of the settings."""
        return {"tiles": self.tiles, "whole_slides": self.whole_slides, "train": self.train}


@dataclass(frozen=True)
class PredictedSlide(ScoredRow):
    """A row of slides.tsv.

    Attributes:
        predicted: the number, or the log hazard ratio.
        tiles: number of tiles.
        outcome: that its label states; None: a new slide.
    """

    predicted: float
    tiles: int
    outcome: Outcome | None


OutcomeRun = Run[SlideState, PredictedSlide, OutcomePredictor, OutcomeMetrics]


def read_sheet(path: Path) -> Sequence[Member]:
    """Read the sample sheet; slide files may have been moved since the run."""
    return read_rows(path, OUTCOME_SHEET, may_be_missing=lambda file: True)


def read_predictions(
    path: Path, model: OutcomePredictor, labelled: bool = True
) -> list[PredictedSlide]:
    """Read slides.tsv of a run; see `read_outcomes`. The model is not used."""
    return read_outcomes(path, labelled)


def read_outcomes(path: Path, labelled: bool = True) -> list[PredictedSlide]:
    """Read slides.tsv, in its order.

    Args:
        path: the table.
        labelled: False for new slides, which have no outcome.

    Raises:
        UserError: the table is missing or damaged, or a prediction is not a number.
    """
    slides = []
    columns = ["slide", "tiles", "predicted"]
    for number, row in enumerate(read_table(path, columns + ["patient", "label"] * labelled), 2):
        try:
            predicted = float(row["predicted"])
        except ValueError:
            predicted = math.nan
        if not math.isfinite(predicted):
            raise bad_cell(path, number, row, "predicted", "a number")
        slides.append(
            PredictedSlide(
                row["slide"],
                row.get("patient", ""),
                row["label"] if labelled else None,
                predicted,
                whole_number(path, number, row, "tiles"),
                parse_outcome(row["label"]) if labelled else None,
            )
        )
    return slides


def read_new(
    folder: Path, model: OutcomePredictor, rows: Sequence[CohortRow]
) -> dict[str, PredictedSlide]:
    """Read the predictions of new slides by id, from the folder of predictions.

    Raises:
        UserError: the table is missing or damaged, or has a slide that is not in tiles.tsv.
    """
    path = folder / "slides.tsv"
    return by_known_id(read_predictions(path, model, labelled=False), path, rows)


def read_metrics(
    path: Path, model: OutcomePredictor, scored: Sequence[PredictedSlide]
) -> OutcomeMetrics:
    """Read evaluation/metrics.json.

    Raises:
        UserError: it is damaged, or counts other slides.
    """
    metrics = read_model(OutcomeMetrics, path)
    if metrics.n != len(scored):
        raise UserError(
            f"{path}: counts {metrics.n} slides, and slides.tsv has {len(scored)}; one of the two "
            "is out of date, run the evaluation again"
        )
    return metrics
