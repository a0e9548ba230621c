"""Sample sheets: which columns a kind of sheet has, and what its rows mean."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from gigatile.cohort.names import is_invisible
from gigatile.errors import UserError
from gigatile.settings.split import SPLITS
from gigatile.stores.addresses import is_address, parse_address

# Formats of slides with several files.
SEVERAL_FILES = (".mrxs", ".dcm", ".vms", ".vmu")

# An id names files on every kind of file system, and appears in patterns of the workflow.
SAFE_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}"
_SAFE_ID = re.compile(SAFE_ID)
# The strata of times to an event.
EVENT, CENSORED = "event", "censored"


class PatientRow(Protocol):
    """A slide or a case: a row of a sheet, or of a table of a run."""

    @property
    def id(self) -> str:
        """The id, unique in the sheet and safe as a file name."""

    @property
    def patient(self) -> str:
        """The patient; all slides and cases of a patient are in the same split."""

    @property
    def split(self) -> str:
        """The split; in a sheet, the split that it fixes, or empty."""


class Member(PatientRow, Protocol):
    """A row of a sheet: a slide or a case."""

    @property
    def unit(self) -> str:
        """`slide` or `case`: the column of the id."""

    @property
    def label(self) -> str:
        """The class, or empty."""

    @property
    def site(self) -> str:
        """Where it comes from, or empty."""

    @property
    def row(self) -> int:
        """The line number in the sheet; the header is line 1."""

    @property
    def files(self) -> Sequence[Path]:
        """All files of the row."""

    @property
    def cells(self) -> Mapping[str, str]:
        """All cells of the row, by column."""


def stratum_of(member: Member) -> str:
    """Return what the splits balance: the class, or whether an event was observed; or empty."""
    stratum: str | None = getattr(member, "stratum", None)
    return member.label if stratum is None else stratum


def has_outcome(member: Member) -> bool:
    """Return whether a member has an outcome that is not a class."""
    return getattr(member, "stratum", None) is not None


def is_required(member: Member) -> bool:
    """Return whether each split needs a patient of the member's stratum: not of censored ones."""
    return not (has_outcome(member) and stratum_of(member) == CENSORED)


@dataclass(frozen=True)
class Row:
    """The cells of a row, before they are a slide or a case.

    Attributes:
        number: the line number in the sheet.
        cells: text by column.
        id, patient, label, split, site: empty if the cell is empty or the column missing.
        files: path by column, without empty cells.
        reference: path of the reference segmentation; None: there is none.
        labelled: False: of a new slide or case, so that its outcome is ignored.
    """

    number: int
    cells: Mapping[str, str]
    id: str
    patient: str
    label: str
    split: str
    site: str
    files: Mapping[str, Path]
    reference: Path | None
    labelled: bool = True


M = TypeVar("M", bound=Member)


@dataclass(frozen=True)
class SheetLayout(Generic[M]):
    """The columns of a kind of sheet. Every sheet may also have the columns `split` and `site`.

    In a sheet of new slides or cases, which a model predicts, only the id and the files are
    required. There the patient defaults to the id, and labels, references and splits are ignored.

    Attributes:
        unit: what a row is; also the column of its id.
        build: returns the slide or case of a row, and the faults of the layout's own columns.
        files: columns of files.
        files_may_be_empty: False: each file is required; True: at least one of them.
        single_file: a column that replaces `files` if the sheet has it; None: no such column.
        label: whether there is a column `label`.
        reference: the column of the reference segmentation; None: no such column.
        files_in_stores: whether files may be addresses (see `gigatile.stores.addresses`).
        reference_in_stores: whether a reference may be one.
    """

    unit: str
    build: Callable[[Row], tuple[M, list[str]]]
    files: tuple[str, ...]
    files_may_be_empty: bool = False
    single_file: str | None = None
    label: bool = False
    reference: str | None = None
    files_in_stores: bool = False
    reference_in_stores: bool = False

    def required(self, header: Sequence[str], labelled: bool) -> list[str]:
        """Return the columns that a sheet must have."""
        # Without columns of files, the caller does not use them: the sheet need not have them.
        files = self.file_columns(header) if self.files else []
        return [*self.names(labelled), *files, *self.references(labelled)]

    def names(self, labelled: bool) -> list[str]:
        """Return the columns of names that are required."""
        cohort = ["patient", *(["label"] if self.label else [])]
        return [self.unit, *(cohort if labelled else [])]

    def references(self, labelled: bool) -> list[str]:
        """Return the columns of references that are required."""
        return [self.reference] if self.reference and labelled else []

    def address_faults(self, column: str, address: str) -> list[str]:
        """Return what is wrong with a cell that is an address."""
        in_stores = self.files_in_stores
        if column == self.reference:
            in_stores = self.reference_in_stores
        if not in_stores:
            return [f"{column} {address}: must be a file on a disk, not an address"]
        try:
            path = parse_address(address)
        except UserError as error:
            return [f"{column} {error}"]
        if path.suffix.lower() in SEVERAL_FILES:
            return [
                f"{column} {address}: a slide of several files must be on a disk; only single "
                "files are read from a store"
            ]
        return []

    def file_columns(self, header: Collection[str]) -> list[str]:
        """Return the columns of files of a sheet."""
        if self.single_file is not None and self.single_file in header:
            return [self.single_file]
        return list(self.files)


def parse_row(
    layout: SheetLayout[M], number: int, cells: Mapping[str, str], folder: Path, labelled: bool
) -> Row:
    """Return a row of a sheet.

    Args:
        layout: the kind of sheet.
        number: the line number in the sheet.
        cells: text by column.
        folder: of the sheet; paths are relative to it.
        labelled: False for a sheet of new slides or cases.
    """
    names = {name: _text(cells, name) for name in (layout.unit, "patient", "label", "site")}
    reference = cells[layout.reference] if layout.reference and labelled else ""
    return Row(
        number=number,
        cells=cells,
        id=names[layout.unit],
        patient=names["patient"] if labelled else names["patient"] or names[layout.unit],
        label=names["label"] if layout.label and labelled else "",
        split=cells.get("split", "") if labelled else "",
        site=names["site"],
        files={
            column: path_of(folder, cells[column])
            for column in layout.file_columns(cells)
            if cells[column]
        },
        reference=path_of(folder, reference) if reference else None,
        labelled=labelled,
    )


def path_of(folder: Path, cell: str) -> Path:
    """Return the path of a file; an address has no folder."""
    return Path(cell) if is_address(cell) else folder / cell


def _text(cells: Mapping[str, str], column: str) -> str:
    """Return a cell with runs of white space (also no-break spaces) replaced by one blank."""
    return " ".join(cells.get(column, "").split())


def row_faults(layout: SheetLayout[M], row: Row, labelled: bool) -> list[str]:
    """Return what is wrong with the names, the split and the empty cells of a row."""
    files = layout.file_columns(row.cells)
    each_file = not layout.files_may_be_empty or layout.single_file in row.cells
    required = [
        *layout.names(labelled),
        *(files if each_file else []),
        *layout.references(labelled),
    ]
    faults = [f"{column} is empty" for column in required if not row.cells[column]]
    faults += [
        f"{column} {value!r} contains an invisible character"
        for column, value in (("patient", row.patient), ("label", row.label))
        if any(map(is_invisible, value))
    ]
    for column in (*files, *layout.references(labelled)):
        if is_address(cell := row.cells[column]):
            faults += layout.address_faults(column, cell)
    if row.id and not _SAFE_ID.fullmatch(row.id):
        faults.append(
            f"{layout.unit} {row.id!r} is unsafe as a file name; use up to 150 letters, digits, "
            "'.', '_' and '-', starting with a letter or a digit"
        )
    if row.split and row.split not in SPLITS:
        faults.append(f"split {row.split!r} must be train, valid, test or empty")
    if files and not row.files and not each_file:
        faults.append(f"no file: {', '.join(files)} are all empty")
    return faults
