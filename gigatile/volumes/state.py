"""The state of a case, volumes/<case>.json: the outcome of preparing it, and why it failed."""

from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from gigatile.errors import UserError
from gigatile.states import AppearanceFigures, RecordsFile, StateModel
from gigatile.stores.sources import fingerprint, size_and_time
from gigatile.volumes.grid import Grid
from gigatile.volumes.reader import Volume

SCHEMA = 1


class CaseSource(StateModel):
    """A file of a case.

    Attributes:
        spacing, orientation: None if the header is damaged.
    """

    name: str
    bytes: int
    fingerprint: str
    shape: list[int]
    dtype: str
    byte_order: Literal["little", "big"]
    format: str
    scaled: bool
    spacing: list[float] | None = Field(None, exclude_if=lambda spacing: spacing is None)
    orientation: str | None = Field(None, exclude_if=lambda orientation: orientation is None)

    @classmethod
    def from_volume(cls, volume: Volume) -> "CaseSource":
        """Describe a file, without its geometry."""
        return cls(
            name=volume.path.name,
            bytes=size_and_time(volume.path)[0],
            fingerprint=fingerprint(volume.path),
            shape=[*volume.shape, volume.channels] if volume.channels > 1 else [*volume.shape],
            dtype=volume.dtype.name,
            byte_order="big" if volume.header.endianness == ">" else "little",
            format=volume.format,
            scaled=volume.scaled,
        )


class PreparedVolume(StateModel):
    """The prepared case: its voxels, their spacing in mm, and how many are head."""

    shape: tuple[int, int, int]
    spacing: tuple[float, float, float]
    voxels_inside: int


class ChannelStatistics(StateModel):
    """Mean and standard deviation of a channel's head, in the values of its file."""

    mean: float
    sd: float


class CaseFacts(StateModel):
    """What is known about a case while it is prepared.

    Attributes:
        schema_version: of the state's format.
        case: the case's id.
        state: `prepared` or `failed`.
        reason: why it failed.
        sources: the files that could be opened, by the name of their column.
        labelled: whether it has a segmentation.
        warnings: what the user should check.
        filled: missing modalities that were filled with zeros.
        agreement: how the grids of the files compare; see `gigatile.volumes.geometry.Agreement`.
        difference_mm: the largest distance between the same corner of two files.
        reference: the name of the file that has the case's grid.
        grid: the grid of the prepared case.
        prepared: its size.
        background: the value of the background by modality; None if it is noise.
        normalised: the statistics by modality with which it was normalised.
        labels: number of voxels by label, in the file.
        volumes_ml: volume by label.
        appearance: how it looks; see `gigatile.volumes.channels.appearance_of`.
        stalled_minutes: the limit in minutes that the case exceeded without progress, else None.
    """

    schema_version: int = Field(alias="schema")
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
    grid: Grid | None
    prepared: PreparedVolume | None
    background: dict[str, float | None]
    normalised: dict[str, ChannelStatistics]
    labels: dict[str, int]
    volumes_ml: dict[str, float]
    appearance: AppearanceFigures = Field(default_factory=dict)
    stalled_minutes: float | None = Field(None, exclude_if=lambda minutes: minutes is None)

    @classmethod
    def unopened(cls, case: str, labelled: bool) -> "CaseFacts":
        """Return what is known before any file is opened."""
        return cls(
            schema_version=SCHEMA,
            case=case,
            state="failed",
            reason=None,
            sources={},
            labelled=labelled,
            warnings=[],
            filled=[],
            agreement=None,
            difference_mm=None,
            reference=None,
            grid=None,
            prepared=None,
            background={},
            normalised={},
            labels={},
            volumes_ml={},
        )


class CaseState(CaseFacts):
    """The state of a case.

    Attributes:
        records: the file of its record.
        settings: the settings with which it was prepared.
    """

    records: RecordsFile
    settings: dict[str, JsonValue]

    def prepared_grid(self, path: Path) -> Grid:
        """Return the grid of a prepared case.

        Args:
            path: of this state, for the message.

        Raises:
            UserError: it has none.
        """
        if self.grid is None:
            raise UserError(f"{path}: the case has no grid; delete this file and run again")
        return self.grid
