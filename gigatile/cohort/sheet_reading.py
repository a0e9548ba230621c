"""Read sample sheets: tab-separated text with one row per slide or case.

All faults of a sheet come in one message.
"""

import codecs
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from gigatile.cohort.sheet import M, SheetLayout, parse_row, path_of, row_faults
from gigatile.cohort.sheet_conflicts import find_conflicts, missing_files
from gigatile.errors import UserError, all_faults


def read_sheet(
    sheet: Path,
    layout: SheetLayout[M],
    labelled: bool = True,
    may_be_missing: Callable[[Path], bool] = lambda path: False,
    look: bool = True,
) -> list[M]:
    """Read and check a sheet.

    Args:
        sheet: the file; columns that the layout does not have are ignored.
        layout: its kind.
        labelled: False for a sheet of new slides or cases.
        may_be_missing: returns for a missing file whether the workflow will create it.
        look: whether to check that files exist. Only one process of a run needs to.

    Returns:
        The slides or cases in the order of the sheet.

    Raises:
        UserError: lists all faults of the sheet with their row numbers.
    """
    rows = _read_rows(sheet)
    header_row, header = rows[0] if rows else (1, [])
    faults = _header_faults(header, layout.required(header, labelled))
    if faults:
        raise all_faults(f"{sheet}, row {header_row} (the header):", faults)
    if len(rows) == 1:
        raise UserError(f"{sheet}: no rows below the header; add one row per {layout.unit}")

    members = []
    for number, cells in rows[1:]:
        if len(cells) != len(header):
            faults.append(
                f"row {number}: {len(cells)} cells, but {len(header)} columns in the header"
            )
            continue
        row = parse_row(
            layout, number, dict(zip(header, cells, strict=True)), sheet.parent, labelled
        )
        member, more = layout.build(row)
        faults += [f"row {number}: {fault}" for fault in row_faults(layout, row, labelled) + more]
        members.append(member)
    if look:
        faults += missing_files(members, may_be_missing)
    faults += find_conflicts(members, look)
    if faults:
        faults.sort(key=_row_of)
        raise all_faults(f"{sheet}: {len(faults)} fault(s)", faults)
    return members


def columns_of(sheet: Path) -> list[str]:
    """Return the header of a sheet.

    Raises:
        UserError: the file is missing, or is not text.
    """
    rows = _read_rows(sheet)
    return rows[0][1] if rows else []


def files_in_column(sheet: Path, column: str) -> list[Path]:
    """Return the files that a column of a sheet names, in the order of the sheet.

    Raises:
        UserError: the file is missing, or is not text.
    """
    (_, header), *rows = _read_rows(sheet) or [(1, [])]
    if column not in header:
        return []
    cells = [cells[header.index(column)] for _, cells in rows if len(cells) == len(header)]
    return [path_of(sheet.parent, cell) for cell in cells if cell]


def _read_rows(sheet: Path) -> list[tuple[int, list[str]]]:
    """Return (line number, stripped cells) of each line that is not blank."""
    try:
        data = sheet.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{sheet}: no such sample sheet (settings: `samples`, `predict`)") from None
    except OSError as error:
        raise UserError(f"{sheet}: cannot be read: {error.strerror}") from None
    # Accept what spreadsheets write: byte-order marks, UTF-16 and three kinds of line ends.
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
        raise UserError(f"{sheet}: contains zero bytes; not a text file")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = enumerate(text.split("\n"), 1)
    numbered = [(row, [cell.strip() for cell in line.split("\t")]) for row, line in lines]
    return [(row, cells) for row, cells in numbered if any(cells)]


def _header_faults(header: list[str], required: Sequence[str]) -> list[str]:
    missing = [column for column in required if column not in header]
    columns = ", ".join(header) or "nothing"
    if len(columns) > 300:  # not a header, but the text of some other file
        columns = f"{columns[:300]}…"
    if missing and len(header) == 1 and re.search("[,;]", header[0]):
        return [f"found {columns!r}: separated by commas or semicolons; must be tab-separated"]
    faults = [f"column {name!r} appears twice" for name in sorted({h for h in header if h})
              if header.count(name) > 1]  # fmt: skip
    if missing:
        faults.append(f"column(s) {', '.join(missing)} missing; found: {columns}")
    return faults


def _row_of(fault: str) -> int:
    match = re.match(r"row (\d+)", fault)
    return int(match.group(1)) if match else 0
