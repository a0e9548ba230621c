"""Tab-separated tables that the workflow writes: a header, and cells without quotes or escapes."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.files import write_text


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows. None becomes an empty cell; white space in a cell becomes one blank."""
    lines = ["\t".join(columns)]
    for row in rows:
        cells = ("" if cell is None else " ".join(str(cell).split()) for cell in row)
        lines.append("\t".join(cells))
    write_text(path, "\n".join(lines) + "\n")


def read_table(path: Path, columns: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return one dictionary per row.

    Raises:
        UserError: the file is missing or damaged, or one of `columns` is missing.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: damaged, not UTF-8 text; delete it and run again") from None
    header = lines[0].split("\t")
    missing = [column for column in columns if column not in header]
    if missing:
        raise UserError(f"{path}: column(s) {', '.join(missing)} missing; found: {lines[0]!r}")
    rows = [line.split("\t") for line in lines[1:] if line]
    for number, cells in enumerate(rows, 2):
        if len(cells) != len(header):
            raise UserError(
                f"{path}, row {number}: {len(cells)} cells, but {len(header)} columns in the "
                "header; damaged, delete it and run again"
            )
    return [dict(zip(header, cells, strict=True)) for cells in rows]
