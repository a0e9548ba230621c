"""The sample sheet of images, and the table of their states."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gigatile.cohort.sheet import Row, SheetLayout
from gigatile.cohort.state_tables import State, StateTable

RECORDS = "images"


@dataclass(frozen=True)
class Image:
    """A row of the sheet."""

    unit: ClassVar[str] = "image"
    label: ClassVar[str] = ""
    image: str
    patient: str
    path: Path
    split: str
    site: str
    row: int
    cells: Mapping[str, str]

    @property
    def id(self) -> str:
        """The image's id."""
        return self.image

    @property
    def files(self) -> tuple[Path, ...]:
        """The image's file."""
        return (self.path,)


def _build(row: Row) -> tuple[Image, list[str]]:
    path = row.files.get("path", Path())
    return Image(row.id, row.patient, path, row.split, row.site, row.number, row.cells), []


def sheet() -> SheetLayout[Image]:
    """Return the layout of the sample sheet."""
    return SheetLayout(unit="image", build=_build, files=("path",))


class ImageState(State):
    """images/<image>.json."""

    image: str
    brightness: float | None


def _cells(state: ImageState) -> Mapping[str, object]:
    return {"brightness": "" if state.brightness is None else f"{state.brightness:.6f}"}


STATE_TABLE = StateTable(
    columns=("image", "patient", "split", "state", "brightness", "reason", "sha256"),
    model=ImageState,
    cells=_cells,
)
