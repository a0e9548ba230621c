"""The state of a case: volumes/<case>.json."""

from pathlib import Path
from typing import Any, Literal

from gigatile.errors import UserError
from gigatile.report.inputs import Records, Told
from gigatile.volumes.grid import Grid


class CaseSource(Told):
    """A file of a case; the fields are None where it could not be read so far."""

    name: str
    fingerprint: str | None = None
    shape: list[int] | None = None
    spacing: list[float] | None = None
    orientation: str | None = None
    dtype: str | None = None
    byte_order: str | None = None
    format: str | None = None
    scaled: bool = False


class Normalised(Told):
    """Mean and standard deviation of a channel's head, in its file's own values."""

    mean: float
    sd: float


class Prepared(Told):
    """The prepared case: voxels, millimetres, and how many voxels are head."""

    shape: tuple[int, int, int]
    spacing: tuple[float, float, float]
    voxels_inside: int


class CaseState(Told):
    """What happened to one case: volumes/<case>.json."""

    case: str
    state: Literal["prepared", "failed"]
    reason: str | None
    sources: dict[str, CaseSource]
    labelled: bool
    warnings: list[str]
    filled: list[str]
    agreement: Literal["equal", "noise", "resampled", "different"] | None
    difference_mm: float | None
    reference: str | None
    grid: dict[str, Any] | None
    prepared: Prepared | None
    background: dict[str, float | None]
    normalised: dict[str, Normalised]
    volumes_ml: dict[str, float]
    records: Records

    def placed(self, path: Path) -> Grid:
        """Return the grid of a prepared case; `path` is of this state, for the message."""
        try:
            return Grid.from_json(self.grid or {})
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: its grid is damaged ({error!r}); delete it") from None
