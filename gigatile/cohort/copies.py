"""Files with the same content: one slide of two patients, or a slide of the cohort to predict.

Only files of equal size can be equal. First a few kilobytes of these are compared; if they are
equal, the fingerprints are.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

from gigatile.cohort.sheet import Member
from gigatile.errors import all_faults
from gigatile.files import fingerprint

# A member of a sheet and one of its files.
_File = tuple[Member, Path]


def check_copies(members: Sequence[Member], sheet: Path) -> list[str]:
    """Refuse a sheet in which two patients have files with the same content.

    Files that are missing, empty or HTML pages are skipped. So are segmentations: two heads without
    a tumour have equal ones.

    Returns:
        A warning for each file that a patient has twice.

    Raises:
        UserError: lists every such file with its rows.
    """
    faults, warnings = [], []
    for same in equal_files(members):
        first, path = same[0]
        for other, again in same[1:]:
            if other.row == first.row and again == path:
                continue
            text = (
                f"row {other.row}: file {again} of {other.unit} {other.id!r} has the same content "
                f"as {path} of {first.unit} {first.id!r} in row {first.row}"
            )
            if other.patient != first.patient:
                faults.append(f"{text}; the patients are {other.patient!r} and {first.patient!r}")
            else:
                warnings.append(f"{sheet}, {text}; both are of patient {other.patient!r}")
    if faults:
        raise all_faults(
            f"{sheet}: {len(faults)} file(s) belong to two patients, who could be in different "
            "splits; remove the wrong rows, or give both rows the same patient",
            faults,
        )
    return warnings


def copies_in_cohort(new: Sequence[Member], cohort: Sequence[Member], sheet: Path) -> list[str]:
    """Return a warning for each new slide or case with the id or a file of one in the cohort.

    Args:
        new: the slides or cases to predict.
        cohort: the slides or cases that the model is trained and tested on.
        sheet: the sheet of the new ones.
    """
    ids = {one.id.casefold(): one for one in cohort}
    found = {
        one.row: (one, ids[one.id.casefold()], "id") for one in new if one.id.casefold() in ids
    }
    of_cohort = {id(one) for one in cohort}
    for same in equal_files([*cohort, *new]):
        mine = [one for one, _ in same if id(one) in of_cohort]
        if mine:
            others = [one for one, _ in same if id(one) not in of_cohort]
            found |= {one.row: (one, mine[0], "file") for one in others}
    return [
        f"{sheet}, row {row}: {one.unit} {one.id!r} has the {what} of {other.id!r} in the cohort; "
        "the model is trained and tested on the cohort, so the prediction shows nothing about new "
        f"{one.unit}s"
        for row, (one, other, what) in sorted(found.items())
    ]


def equal_files(members: Iterable[Member]) -> list[list[_File]]:
    """Return groups of equal files, each in the order of the members."""
    files = [
        (one, path)
        for one in members
        for path in one.files
        if path != getattr(one, "segmentation", None)
    ]
    groups = _alike([files], lambda path: path.stat().st_size or None)
    groups = _alike(groups, _beginning)
    return _alike(groups, fingerprint)


def _beginning(path: Path) -> str | None:
    with path.open("rb") as handle:
        if handle.read(1) == b"<":
            return None
    return fingerprint(path, blocks=3, block_bytes=4096)


def _alike(groups: Iterable[Sequence[_File]], key: Callable[[Path], Hashable]) -> list[list[_File]]:
    """Divide groups by a key; leave out single files, unreadable files and files without a key."""
    found = []
    for group in groups:
        by_key: dict[Hashable, list[_File]] = defaultdict(list)
        known: dict[str, Hashable] = {}
        for one, path in group:
            name = os.fspath(path)
            if name not in known:
                try:
                    known[name] = key(path)
                except OSError:
                    known[name] = None
            if known[name] is not None:
                by_key[known[name]].append((one, path))
        found += [same for same in by_key.values() if len(same) > 1]
    return found
