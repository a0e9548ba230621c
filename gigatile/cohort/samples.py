"""The sample sheet: who is in the cohort. Read and checked once, every fault in one message."""

import codecs
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gigatile.cohort.mpp import parse_mpp
from gigatile.errors import UserError, all_faults
from gigatile.settings.split import SPLITS

# A slide's id names files on every kind of file system and appears in a pattern of the workflow.
SAFE_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}"
_SAFE_ID = re.compile(SAFE_ID)
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

    slide: str
    patient: str
    label: str
    path: Path
    mpp: float | None
    split: str
    site: str
    row: int


def read_samples(
    sheet: Path, labelled: bool = True, made_later: Callable[[Path], bool] = lambda path: False
) -> list[Sample]:
    """Read and check a sample sheet.

    Args:
        sheet: tab-separated text with a header line; further columns are ignored.
        labelled: False for a sheet of new slides, which needs only slide and path.
        made_later: tells for a missing slide file whether the workflow will make it.

    Returns:
        The samples in the order of the sheet.

    Raises:
        UserError: everything that is wrong with the sheet, with row numbers.
    """
    sheet = Path(sheet)
    rows = _read_rows(sheet)
    header_row, header = rows[0] if rows else (1, [])
    required = REQUIRED if labelled else REQUIRED_NEW
    faults = _header_faults(header, required)
    if faults:
        raise all_faults(f"{sheet}, row {header_row} (the header):", faults)
    if len(rows) == 1:
        raise UserError(f"{sheet}: no slide under the header; one row per slide is needed")

    faults = []
    samples = []
    for row, cells in rows[1:]:
        if len(cells) != len(header):
            faults.append(
                f"row {row}: {len(cells)} cells where the header has {len(header)} columns"
            )
            continue
        sample, wrong = _parse_row(
            row, dict(zip(header, cells, strict=True)), sheet.parent, labelled
        )
        faults += wrong
        samples.append(sample)
    faults += _missing_files(samples, made_later) + _conflicts(samples)
    if faults:
        faults.sort(key=_row_of)
        raise all_faults(f"{sheet}: {len(faults)} fault(s)", faults)
    return samples


def classes_of(samples: list[Sample]) -> list[str]:
    """Return the labels of a cohort in the order of the model's outputs."""
    return sorted({sample.label for sample in samples})


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


def _parse_row(
    row: int, cells: dict[str, str], folder: Path, labelled: bool
) -> tuple[Sample, list[str]]:
    faults = []

    def wrong(what: str) -> None:
        faults.append(f"row {row}: {what}")

    # Two blanks or a spreadsheet's no-break space look like one blank, so they are one.
    slide, patient, label, site = (
        " ".join(cells.get(column, "").split()) for column in ("slide", "patient", "label", "site")
    )
    if not labelled:
        patient, label = patient or slide, ""
    for column in ("slide", "patient", "label", "path") if labelled else ("slide", "path"):
        if not cells[column]:
            wrong(f"{column} is empty")
    for column, value in (("patient", patient), ("label", label)):
        if any(unicodedata.category(character).startswith("C") for character in value):
            wrong(f"{column} {value!r} holds an invisible character")
    if slide and not _SAFE_ID.fullmatch(slide):
        wrong(
            f"slide {slide!r} is unsafe as a file name; use up to 150 letters, digits, '.', '_' "
            "and '-', starting with a letter or a digit"
        )
    split = cells.get("split", "") if labelled else ""
    if split and split not in SPLITS:
        wrong(f"split {split!r} must be train, valid, test or empty")
    mpp = None
    if cells.get("mpp"):
        try:
            mpp = parse_mpp(cells["mpp"])
        except UserError as error:
            wrong(str(error))
    path = folder / cells["path"] if cells["path"] else Path()
    return Sample(slide, patient, label, path, mpp, split, site, row), faults


def _missing_files(samples: list[Sample], made_later: Callable[[Path], bool]) -> list[str]:
    faults = []
    for sample in samples:
        try:
            missing = not sample.path.exists()
        except OSError as error:
            faults.append(f"row {sample.row}: {sample.path}: {error.strerror}")
            continue
        if missing and not made_later(sample.path):
            faults.append(f"row {sample.row}: no file {sample.path}")
    return faults


def _conflicts(samples: list[Sample]) -> list[str]:
    """Find what no single row shows: the same slide, file or patient under contrary names."""
    faults = []
    by_slide, by_path, by_patient = defaultdict(list), defaultdict(list), defaultdict(list)
    folders: dict[Path, Path] = {}
    spellings: dict[tuple[str, str], dict[str, int]] = {}
    for sample in samples:
        if sample.slide:
            by_slide[sample.slide.casefold()].append(sample)
        if sample.path.name:
            by_path[_real(sample.path, folders)].append(sample)
        if sample.patient:
            by_patient[sample.patient].append(sample)
        for column, name in (("label", sample.label), ("patient", sample.patient)):
            # One patient under two spellings could come into two splits.
            alike = unicodedata.normalize("NFKC", name).casefold()
            spellings.setdefault((column, alike), {}).setdefault(name, sample.row)
    for same in by_slide.values():
        first = same[0]
        for other in same[1:]:
            where = f"row {other.row}: slide {other.slide!r} stands already in row {first.row}"
            if other.slide != first.slide:
                faults.append(f"{where} as {first.slide!r}, which some file systems take as equal")
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
    for same in by_path.values():
        first = same[0]
        faults += [
            f"row {other.row}: file {other.path} is already slide {first.slide!r} in row "
            f"{first.row}; a slide may stand once"
            for other in same[1:]
            if other.slide != first.slide
        ]
    for patient, slides in by_patient.items():
        fixed = {sample.split: sample for sample in slides if sample.split}
        if len(fixed) > 1:
            where = ", ".join(f"{one.split} in row {one.row}" for one in fixed.values())
            row = max(one.row for one in fixed.values())
            faults.append(
                f"row {row}: patient {patient!r} is fixed to several splits ({where}); "
                "all slides of a patient belong to one"
            )
    for (column, _), spelled in spellings.items():
        if len(spelled) > 1:
            where = ", ".join(f"{name!r} in row {row}" for name, row in spelled.items())
            row = max(spelled.values())
            faults.append(f"row {row}: one {column} is spelled in two ways: {where}")
    return faults


def _real(path: Path, folders: dict[Path, Path]) -> Path:
    """Return a file's path without links and detours: one file under two names is one slide.

    `folders` keeps what was found, since resolving a path looks at every folder above it.
    """
    if os.path.islink(path):  # noqa: PTH114 - of a name that is too long, Path's own raises
        return path.resolve()
    if path.parent not in folders:
        folders[path.parent] = path.parent.resolve()
    return folders[path.parent] / path.name


def _row_of(fault: str) -> int:
    match = re.match(r"row (\d+)", fault)
    return int(match.group(1)) if match else 0
