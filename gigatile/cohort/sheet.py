"""What all sheets share: how a table is read, and where its rows contradict each other."""

import codecs
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from gigatile.cohort.names import doubtful_names, is_invisible, same_names, shown
from gigatile.errors import UserError, all_faults
from gigatile.paths import fault_of_path
from gigatile.settings.split import SPLITS

# An id names files on every kind of file system and appears in a pattern of the workflow.
SAFE_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}"
_SAFE_ID = re.compile(SAFE_ID)


class OfPatient(Protocol):
    """A slide or a case, in a sheet or in a table of a run."""

    @property
    def id(self) -> str:
        """Its id, unique in the sheet and safe as a file name."""

    @property
    def patient(self) -> str:
        """The patient; all slides and cases of a patient are in one split."""

    @property
    def split(self) -> str:
        """The split: in a sheet the one that the sheet fixes, or empty."""


class Member(OfPatient, Protocol):
    """A row of a sheet: a slide, or a case."""

    @property
    def unit(self) -> str:
        """What it is: the name of the column that holds its id."""

    @property
    def label(self) -> str:
        """Its class, or empty."""

    @property
    def row(self) -> int:
        """Its line in the sheet; the header is line 1."""

    @property
    def files(self) -> Sequence[Path]:
        """Its files."""


M = TypeVar("M", bound=Member)
Cells = dict[str, str]
# From a row's number, its cells and the sheet's folder to what it says, and what is wrong with it.
Parse = Callable[[int, Cells, Path], tuple[M, list[str]]]


def read_sheet(
    sheet: Path,
    unit: str,
    required: Callable[[Sequence[str]], Iterable[str]],
    parse: "Parse[M]",
    made_later: Callable[[Path], bool],
    look: bool = True,
) -> list[M]:
    """Read and check a sheet: tab-separated text with a header line.

    Args:
        sheet: the file.
        unit: what a row is about.
        required: returns the columns that must be there, of those that are.
        parse: reads a row.
        made_later: tells for a missing file whether the workflow will make it.
        look: False: do not check whether the files exist; another process has done so.

    Returns:
        What the rows say, in their order.

    Raises:
        UserError: everything that is wrong with the sheet, with row numbers.
    """
    rows = _read_rows(sheet)
    header_row, header = rows[0] if rows else (1, [])
    faults = _header_faults(header, tuple(required(header)))
    if faults:
        raise all_faults(f"{sheet}, row {header_row} (the header):", faults)
    if len(rows) == 1:
        raise UserError(f"{sheet}: no {unit} under the header; one row per {unit} is needed")

    members = []
    for row, cells in rows[1:]:
        if len(cells) != len(header):
            faults.append(
                f"row {row}: {len(cells)} cells where the header has {len(header)} columns"
            )
            continue
        member, wrong = parse(row, dict(zip(header, cells, strict=True)), sheet.parent)
        faults += wrong
        members.append(member)
    faults += (_missing_files(members, made_later) if look else []) + _conflicts(members, look)
    if faults:
        faults.sort(key=_row_of)
        raise all_faults(f"{sheet}: {len(faults)} fault(s)", faults)
    return members


def columns_of(sheet: Path) -> list[str]:
    """Return the header of a sheet.

    Raises:
        UserError: there is no such sheet, or it is no text.
    """
    rows = _read_rows(sheet)
    return rows[0][1] if rows else []


def text_of(cells: Cells, column: str) -> str:
    """Return a cell; two blanks or a spreadsheet's no-break space look like one blank: they are."""
    return " ".join(cells.get(column, "").split())


def faults_of_names(
    unit: str, name: str, named: Cells, filled: Iterable[str], cells: Cells
) -> list[str]:
    """Return what is wrong with how a row names things.

    Args:
        unit: what the row is about.
        name: its id.
        named: what else has a name, by its column.
        filled: columns that must not be empty.
        cells: of the row.
    """
    faults = [f"{column} is empty" for column in filled if not cells[column]]
    faults += [
        f"{column} {value!r} holds an invisible character"
        for column, value in named.items()
        if any(map(is_invisible, value))
    ]
    if name and not _SAFE_ID.fullmatch(name):
        faults.append(
            f"{unit} {name!r} is unsafe as a file name; use up to 150 letters, digits, '.', '_' "
            "and '-', starting with a letter or a digit"
        )
    split = cells.get("split", "")
    if split and split not in SPLITS:
        faults.append(f"split {split!r} must be train, valid, test or empty")
    return faults


def _read_rows(sheet: Path) -> list[tuple[int, list[str]]]:
    """Return (line number, stripped cells) of each line that is not blank."""
    try:
        data = sheet.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{sheet}: no such sample sheet (settings key `samples`)") from None
    except OSError as error:
        raise UserError(f"{sheet}: cannot be read: {error.strerror}") from None
    # Spreadsheets write byte-order marks, UTF-16 and three kinds of line ends; all are taken.
    utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = "utf-16" if utf16 else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + before.count(b"\r") - before.count(b"\r\n") + 1
        raise UserError(
            f"{sheet}, row {line}: not {encoding} text (byte {data[error.start]:#04x}); "
            "save the sheet as UTF-8"
        ) from None
    if "\0" in text:
        raise UserError(f"{sheet}: contains zero bytes; it is no text file")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = enumerate(text.split("\n"), 1)
    numbered = [(row, [cell.strip() for cell in line.split("\t")]) for row, line in lines]
    return [(row, cells) for row, cells in numbered if any(cells)]


def _header_faults(header: list[str], required: tuple[str, ...]) -> list[str]:
    missing = [column for column in required if column not in header]
    found = ", ".join(header) or "nothing"
    if len(found) > 300:  # no header at all, but some other file's text
        found = f"{found[:300]}…"
    if missing and len(header) == 1 and re.search("[,;]", header[0]):
        return [f"found {found!r}: separated by commas or semicolons; must be tab-separated"]
    faults = [f"column {name!r} stands twice" for name in sorted({h for h in header if h})
              if header.count(name) > 1]  # fmt: skip
    if missing:
        faults.append(f"column(s) {', '.join(missing)} missing; found: {found}")
    return faults


def _missing_files(members: Sequence[Member], made_later: Callable[[Path], bool]) -> list[str]:
    faults = []
    for path, row in [(path, member.row) for member in members for path in member.files]:
        if fault := fault_of_path(path):
            faults.append(f"row {row}: path {str(path)!r} {fault}")
            continue
        try:
            # os.stat, since Path.exists reports a loop of links as a missing file.
            os.stat(path)  # noqa: PTH116
            missing = False
        except (FileNotFoundError, NotADirectoryError):
            missing = True
        except OSError as error:
            faults.append(f"row {row}: {path}: {error.strerror}")
            continue
        if missing and not made_later(path):
            faults.append(f"row {row}: no file {path}")
    return faults


def _conflicts(members: Sequence[Member], look: bool) -> list[str]:
    """Find what no single row shows: the same slide, file or patient under contrary names."""
    faults = []
    by_id: dict[str, list[Member]] = defaultdict(list)
    by_path: dict[Path, list[tuple[Member, Path]]] = defaultdict(list)
    by_patient: dict[str, list[Member]] = defaultdict(list)
    folders: dict[Path, Path] = {}
    rows_of: dict[str, dict[str, int]] = {"label": {}, "patient": {}}
    for member in members:
        if member.id:
            by_id[member.id.casefold()].append(member)
        for path in member.files:
            by_path[_real(path, folders) if look else path].append((member, path))
        if member.patient:
            by_patient[member.patient].append(member)
        rows_of["label"].setdefault(member.label, member.row)
        rows_of["patient"].setdefault(member.patient, member.row)
    for same in by_id.values():
        first = same[0]
        for other in same[1:]:
            where = f"row {other.row}: {other.unit} {other.id!r} stands already in row {first.row}"
            if other.id != first.id:
                faults.append(f"{where} as {first.id!r}, which some file systems take as equal")
            elif other.patient != first.patient:
                faults.append(
                    f"{where}, there of patient {first.patient!r}, here of {other.patient!r}"
                )
            elif other.label != first.label:
                faults.append(
                    f"{where}, there with label {first.label!r}, here with {other.label!r}"
                )
            else:
                faults.append(where)
    for same_file in by_path.values():
        first, _ = same_file[0]
        faults += [
            f"row {other.row}: file {path} is already {first.unit} {first.id!r} in row "
            f"{first.row}; a {first.unit} may stand once"
            if other.row != first.row
            else f"row {other.row}: file {path} stands in it twice"
            for other, path in same_file[1:]
            if other.row == first.row or other.id != first.id
        ]
    for patient, theirs in by_patient.items():
        fixed = {member.split: member for member in theirs if member.split}
        if len(fixed) > 1:
            where = ", ".join(f"{one.split} in row {one.row}" for one in fixed.values())
            row = max(one.row for one in fixed.values())
            faults.append(
                f"row {row}: patient {patient!r} is fixed to several splits ({where}); "
                f"all {theirs[0].unit}s of a patient belong to one"
            )
    for column, rows in rows_of.items():
        # One patient with two spellings could be in two splits.
        for spelled in same_names(rows):
            where = ", ".join(f"{shown(name)} in row {rows[name]}" for name in spelled)
            row = max(rows[name] for name in spelled)
            faults.append(f"row {row}: one {column} is spelled in two ways: {where}")
    return faults


def doubts(members: Sequence[Member]) -> list[str]:
    """Return warnings: patients or labels that may be one, such as P10 and P1O."""
    found = []
    for column in ("patient", "label"):
        rows: dict[str, int] = {}
        for member in members:
            rows.setdefault(getattr(member, column), member.row)
        for alike in doubtful_names(rows):
            where = ", ".join(f"{name!r} in row {rows[name]}" for name in alike)
            found.append(
                f"{column}s that differ only in characters that look alike (0 and O, 1 and I and "
                f"l, m and rn): {where}; if they are one {column}, spell them alike"
            )
    return found


def _real(path: Path, folders: dict[Path, Path]) -> Path:
    """Return a file's path without links and detours: one file under two names is one slide.

    `folders` keeps what was found, since resolving a path looks at every folder above it.
    """
    # os.path.islink, since Path raises for a loop of links and for a name that is too long.
    if os.path.islink(path):  # noqa: PTH114
        return Path(os.path.realpath(path))
    if path.parent not in folders:
        folders[path.parent] = Path(os.path.realpath(path.parent))
    return folders[path.parent] / path.name


def _row_of(fault: str) -> int:
    match = re.match(r"row (\d+)", fault)
    return int(match.group(1)) if match else 0
