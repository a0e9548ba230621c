"""The sheet of cases: which volumes there are, and whose. Every fault in one message."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gigatile.cohort.sheet import Cells, faults_of_names, read_sheet, text_of

# The column of one file that holds all modalities.
IMAGE = "image"
SEGMENTATION = "segmentation"


@dataclass(frozen=True)
class Case:
    """One examination of a patient.

    Attributes:
        case: its id, unique in the sheet and safe as a file name.
        patient: whose it is; the unit that is never divided.
        images: the file of each modality, or of `image` the one that holds all. A modality whose
            cell is empty is not among them.
        segmentation: the file with its labels; None: it has none.
        split: the cohort that the sheet fixes for it, or empty.
        site: where it comes from, or empty.
        row: its line in the sheet; the header is line 1.
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

    @property
    def id(self) -> str:
        """The case's id."""
        return self.case

    @property
    def files(self) -> tuple[Path, ...]:
        """All its files, those of the modalities in their order and last the segmentation."""
        last = () if self.segmentation is None else (self.segmentation,)
        return (*self.images.values(), *last)


def read_cases(
    sheet: Path,
    modalities: Sequence[str],
    labelled: bool = True,
    made_later: Callable[[Path], bool] = lambda path: False,
    look: bool = True,
) -> list[Case]:
    """Read and check a sheet of cases.

    Args:
        sheet: tab-separated text with a header line; further columns are ignored.
        modalities: columns of files, unless the sheet has a column `image`. Empty: the files do
            not matter to the caller.
        labelled: False for a sheet of new cases, which needs neither patient nor segmentation.
        made_later: tells for a missing file whether the workflow will make it.
        look: False: no file is looked at; see `read_sheet`.

    Raises:
        UserError: everything that is wrong with the sheet, with row numbers.
    """

    def required(header: Sequence[str]) -> list[str]:
        images = [IMAGE] if IMAGE in header and modalities else list(modalities)
        return ["case", "patient", *images, SEGMENTATION] if labelled else ["case", *images]

    def parse(row: int, cells: Cells, folder: Path) -> tuple[Case, list[str]]:
        return _parse_row(row, cells, folder, modalities, labelled)

    return read_sheet(Path(sheet), "case", required, parse, made_later, look)


def _parse_row(
    row: int, cells: Cells, folder: Path, modalities: Sequence[str], labelled: bool
) -> tuple[Case, list[str]]:
    case, patient, site = (text_of(cells, column) for column in ("case", "patient", "site"))
    filled = ["case", *(["patient"] if labelled else [])]
    if not labelled:
        patient = patient or case
        cells = cells | {"split": "", SEGMENTATION: ""}
    columns = [IMAGE] if IMAGE in cells else list(modalities)
    images = {column: folder / cells[column] for column in columns if cells[column]}
    # A missing modality is for the settings to judge; a segmentation is what a cohort learns from.
    filled += [IMAGE] if IMAGE in cells else []
    filled += [SEGMENTATION] if labelled else []
    faults = faults_of_names("case", case, {"patient": patient}, filled, cells)
    if modalities and not images and IMAGE not in cells:
        faults.append(f"no volume: {', '.join(columns)} are all empty")
    segmentation = folder / cells[SEGMENTATION] if cells[SEGMENTATION] else None
    split = cells.get("split", "")
    return (
        Case(case, patient, images, segmentation, split, site, row),
        [f"row {row}: {fault}" for fault in faults],
    )
