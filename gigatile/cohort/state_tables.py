"""The columns of tiles.tsv and cases.tsv, and how they follow from the states."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from gigatile.json_models import JsonModel


class _Records(JsonModel):
    sha256: str


class State(JsonModel):
    """What the states of slides and cases have in common: the outcome of the preparation.

    Attributes:
        state: `failed`, or that the records can be used.
        reason: why it failed.
        records: the checksum of the records.
    """

    state: str
    reason: str | None
    records: _Records


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class StateTable(Generic[S]):
    """The table of a unit.

    Attributes:
        columns: the first one has the ids; its name is the unit.
        model: the fields of a state that the table uses.
        cells: returns the cells of the unit's own columns.
    """

    columns: tuple[str, ...]
    model: type[S]
    cells: Callable[[S], Mapping[str, object]]


class _TileCounts(JsonModel):
    kept: int


class _SlideState(State):
    tiles: _TileCounts


class _Source(JsonModel):
    fingerprint: str | None = None


class _Prepared(JsonModel):
    shape: list[int]


class _CaseState(State):
    warnings: list[str]
    sources: dict[str, _Source]
    prepared: _Prepared | None


class HasFingerprint(Protocol):
    """A file of a case."""

    @property
    def fingerprint(self) -> str | None:
        """Its fingerprint; None: it could not be read."""


def fingerprints_of(sources: Mapping[str, HasFingerprint]) -> str:
    """Return one checksum of the fingerprints of all files of a case."""
    text = json.dumps({name: source.fingerprint for name, source in sources.items()})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _case_cells(state: _CaseState) -> Mapping[str, object]:
    voxels = math.prod(state.prepared.shape) if state.prepared else 0
    return {
        "megavoxels": f"{voxels / 1e6:.6f}",
        "warnings": len(state.warnings),
        "sources": fingerprints_of(state.sources),
    }


SLIDE_TABLE = StateTable(
    columns=("slide", "patient", "label", "split", "state", "tiles", "reason", "sha256"),
    model=_SlideState,
    cells=lambda state: {"tiles": state.tiles.kept},
)
CASE_TABLE = StateTable(
    columns=(
        *("case", "patient", "split", "state", "megavoxels", "warnings"),
        *("reason", "sources", "sha256"),
    ),
    model=_CaseState,
    cells=_case_cells,
)
STATE_TABLES: Mapping[str, StateTable[Any]] = {"slide": SLIDE_TABLE, "case": CASE_TABLE}
