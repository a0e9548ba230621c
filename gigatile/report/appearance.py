"""Compares how slides, cases or images look with those that the model was trained and chosen on."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from gigatile.evaluation.appearance import (
    LEAST,
    Appearance,
    AppearanceTest,
    TrainingAppearances,
    level_of,
)
from gigatile.json_models import JsonModel, read_model
from gigatile.report.inputs import CohortRow

# Splits that the model was trained and chosen on.
TRAINED = ("train", "valid")


@dataclass(frozen=True)
class Appearances:
    """How slides, cases or images look, compared with those of train and valid.

    Attributes:
        trained: number of those that they are compared with.
        tests: by id; without those that cannot be compared.
        number: how many there are.
        least: the smallest number to compare them with.
    """

    trained: int
    tests: Mapping[str, AppearanceTest] = field(default_factory=dict)
    number: int = 0
    least: int = LEAST

    @property
    def unlike(self) -> dict[str, AppearanceTest]:
        """Those that look unlike the ones of train and valid, the furthest first."""
        unlike = [(name, each) for name, each in self.tests.items() if each.is_unlike]
        return dict(sorted(unlike, key=lambda item: -abs(item[1].deviations[0].deviations)))

    @property
    def by_chance(self) -> float:
        """How many are expected to be called unlike, if all look like those of train and valid."""
        return sum(level_of(each.compared) for each in self.tests.values())


def compare_appearances(states: Mapping[str, Any], trained: TrainingAppearances) -> Appearances:
    """Compare slides, cases or images with those of train and valid.

    Args:
        states: by id.
        trained: of train and valid.
    """
    tests = {name: trained.compare(_appearance_of(state)) for name, state in states.items()}
    known = {name: each for name, each in tests.items() if each is not None}
    return Appearances(len(trained), known, len(states))


def training_appearances(
    rows: Iterable[CohortRow], state_of: Callable[[CohortRow], Any]
) -> TrainingAppearances:
    """Return how the slides, cases or images of train and valid look.

    Args:
        rows: of the cohort.
        state_of: returns the state of a row.
    """
    used = [row for row in rows if row.split in TRAINED and row.state != "failed"]
    return TrainingAppearances([_appearance_of(state_of(row)) for row in used])


def _appearance_of(state: Any) -> Appearance:
    """Return the figures of a state; a task may have none."""
    figures: Appearance = getattr(state, "appearance", {})
    return figures


class _CohortFile(JsonModel):
    """The part of a bundle's cohort.json that is used."""

    appearance: list[dict[str, float]] = Field(default_factory=list)


def read_training_appearances(path: Path) -> TrainingAppearances:
    """Read the figures in the cohort.json of a bundle.

    Raises:
        UserError: it is damaged.
    """
    return TrainingAppearances(read_model(_CohortFile, path).appearance)
