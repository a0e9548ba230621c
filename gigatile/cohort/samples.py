"""The sheet of slides: who is in the cohort. Read and checked once, every fault in one message."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gigatile.cohort.mpp import parse_mpp
from gigatile.cohort.sheet import Cells, faults_of_names, read_sheet, text_of
from gigatile.errors import UserError

REQUIRED = ("slide", "patient", "label", "path")
REQUIRED_NEW = ("slide", "path")


@dataclass(frozen=True)
class Sample:
    """One slide of the cohort.

    Attributes:
        slide: its id, unique in the sheet and safe as a file name.
        patient: whose slide it is; the unit that is never divided.
        label: its class; empty for a new slide.
        path: the slide's file.
        mpp: micrometres per pixel of level 0, where the sheet overrides the file.
        split: the cohort that the sheet fixes for it, or empty.
        site: where it comes from, or empty.
        row: its line in the sheet; the header is line 1.
    """

    unit: ClassVar[str] = "slide"
    slide: str
    patient: str
    label: str
    path: Path
    mpp: float | None
    split: str
    site: str
    row: int

    @property
    def id(self) -> str:
        """The slide's id."""
        return self.slide

    @property
    def files(self) -> tuple[Path, ...]:
        """The slide's file, where the row names one."""
        return (self.path,) if self.path.name else ()


def read_samples(
    sheet: Path,
    labelled: bool = True,
    made_later: Callable[[Path], bool] = lambda path: False,
    look: bool = True,
) -> list[Sample]:
    """Read and check a sheet of slides.

    Args:
        sheet: tab-separated text with a header line; further columns are ignored.
        labelled: False for a sheet of new slides, which needs only slide and path.
        made_later: tells for a missing slide file whether the workflow will make it.
        look: False: do not check whether the files exist; see `read_sheet`.

    Returns:
        The samples in the order of the sheet.

    Raises:
        UserError: everything that is wrong with the sheet, with row numbers.
    """
    required = REQUIRED if labelled else REQUIRED_NEW

    def parse(row: int, cells: Cells, folder: Path) -> tuple[Sample, list[str]]:
        return _parse_row(row, cells, folder, labelled, required)

    return read_sheet(Path(sheet), "slide", lambda header: required, parse, made_later, look)


def _parse_row(
    row: int, cells: Cells, folder: Path, labelled: bool, required: tuple[str, ...]
) -> tuple[Sample, list[str]]:
    slide, patient, label, site = (
        text_of(cells, column) for column in ("slide", "patient", "label", "site")
    )
    if not labelled:
        patient, label = patient or slide, ""
        cells = cells | {"split": ""}
    named = {"patient": patient, "label": label}
    faults = faults_of_names("slide", slide, named, required, cells)
    mpp = None
    if cells.get("mpp"):
        try:
            mpp = parse_mpp(cells["mpp"])
        except UserError as error:
            faults.append(str(error))
    path = folder / cells["path"] if cells["path"] else Path()
    sample = Sample(slide, patient, label, path, mpp, cells.get("split", ""), site, row)
    return sample, [f"row {row}: {fault}" for fault in faults]
