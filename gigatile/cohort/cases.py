"""Sample sheets of cases, which are examinations with one volume per modality."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gigatile.cohort.sheet import Row, SheetLayout
from gigatile.cohort.sheet_reading import read_sheet

# The column of a file that contains all modalities.
IMAGE = "image"
SEGMENTATION = "segmentation"


@dataclass(frozen=True)
class Case:
    """An examination of a patient.

    Attributes:
        case: its id, unique in the sheet and safe as a file name.
        patient: the patient; all cases of a patient are in the same split.
        images: the file of each modality, or under `image` the file that contains all of them. It
            lacks modalities with an empty cell.
        segmentation: the file of the reference segmentation; None: there is none.
        split: the split that the sheet fixes, or empty.
        site: where the case comes from, or empty.
        row: the line number in the sheet; the header is line 1.
        cells: all cells of the row, by column.
    """

    unit: ClassVar[str] = "case"
    label: ClassVar[str] = ""
    case: str
    patient: str
    images: dict[str, Path]
    segmentation: Path | None
    split: str
    site: str
    row: int
    cells: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def id(self) -> str:
        """The case's id."""
        return self.case

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the modalities in their order, then the segmentation."""
        last = () if self.segmentation is None else (self.segmentation,)
        return (*self.images.values(), *last)


def _build(row: Row) -> tuple[Case, list[str]]:
    files = (dict(row.files), row.reference)
    case = Case(row.id, row.patient, *files, row.split, row.site, row.number, row.cells)
    return case, []


def case_sheet(modalities: Sequence[str] = ()) -> SheetLayout[Case]:
    """Return the layout of a sheet with these modalities; none: their columns are not read."""
    return SheetLayout(
        unit="case",
        build=_build,
        files=tuple(modalities),
        files_may_be_empty=True,
        single_file=IMAGE,
        reference=SEGMENTATION,
        files_in_stores=True,
        reference_in_stores=True,
    )


def read_cases(
    sheet: Path,
    modalities: Sequence[str],
    labelled: bool = True,
    may_be_missing: Callable[[Path], bool] = lambda path: False,
    look: bool = True,
) -> list[Case]:
    """Read and check a sheet of cases; see `read_sheet`.

    Args:
        sheet: the file.
        modalities: the columns of files, unless the sheet has a column `image`. Empty: the caller
            does not use the files.
        labelled: False for a sheet of new cases.
        may_be_missing: see `read_sheet`.
        look: see `read_sheet`.
    """
    return read_sheet(Path(sheet), case_sheet(modalities), labelled, may_be_missing, look)
