"""Compares how slides, cases or images look with those that the model was trained and chosen on."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from gigatile.evaluation.appearance import Appearance, Comparison, Trained, level_of
from gigatile.json_models import JsonModel, read_model
from gigatile.report.inputs import CohortRow

# Splits that the model was trained and chosen on.
TRAINED = ("train", "valid")


@dataclass(frozen=True)
class Appearances:
    """How slides, cases or images look, compared with those of train and valid.

    Attributes:
        trained: number of those that they are compared with.
        comparisons: by id; without those that cannot be compared.
        number: how many there are.
    """

    trained: int
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    number: int = 0

    @property
    def unlike(self) -> dict[str, Comparison]:
        """Those that look unlike the ones of train and valid, the furthest first."""
        unlike = [(name, each) for name, each in self.comparisons.items() if each.is_unlike]
        return dict(sorted(unlike, key=lambda item: -abs(item[1].deviations[0].deviations)))

    @property
    def by_chance(self) -> float:
        """How many are expected to be called unlike, if all look like those of train and valid."""
        return sum(level_of(each.compared) for each in self.comparisons.values())


def compare_appearances(states: Mapping[str, Any], trained: Trained) -> Appearances:
    """Compare slides, cases or images with those of train and valid.

    Args:
        states: by id.
        trained: of train and valid.
    """
    compared = {name: trained.compare(_look_of(state)) for name, state in states.items()}
    known = {name: each for name, each in compared.items() if each is not None}
    return Appearances(len(trained), known, len(states))


def trained_of(rows: Iterable[CohortRow], state_of: Callable[[CohortRow], Any]) -> Trained:
    """Return how the slides, cases or images of train and valid look.

    Args:
        rows: of the cohort.
        state_of: returns the state of a row.
    """
    used = [row for row in rows if row.split in TRAINED and row.state != "failed"]
    return Trained([_look_of(state_of(row)) for row in used])


def _look_of(state: Any) -> Appearance:
    """Return the figures of a state; a task may have none."""
    figures: Appearance = getattr(state, "appearance", {})
    return figures


class _Look(JsonModel):
    """The part of a bundle's cohort.json that is used."""

    appearance: list[dict[str, float]] = Field(default_factory=list)


def read_trained(path: Path) -> Trained:
    """Read the figures in the cohort.json of a bundle.

    Raises:
        UserError: it is damaged.
    """
    return Trained(read_model(_Look, path).appearance)
