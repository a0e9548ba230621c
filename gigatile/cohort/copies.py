"""Files with the same content: one slide under two patients, or both predicted and learnt from.

Only files of equal size can be equal, so only those are read: first a few kilobytes of each, and of
those that are alike what a fingerprint takes.
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
    """Refuse a sheet in which a file of one patient is also a file of another one.

    Files that are missing, empty or a page of HTML are passed over, as are segmentations: two heads
    without a tumour have equal ones.

    Returns:
        Warnings of files that one patient has twice.

    Raises:
        UserError: every such file, with the rows in which it stands.
    """
    faults, warnings = [], []
    for same in equal_files(members):
        first, path = same[0]
        for other, again in same[1:]:
            if other.row == first.row and again == path:
                continue
            text = (
                f"row {other.row}: file {again} of {other.unit} {other.id!r} has the content of "
                f"{path}, which is {first.unit} {first.id!r} in row {first.row}"
            )
            if other.patient != first.patient:
                faults.append(
                    f"{text}, there of patient {first.patient!r}, here of {other.patient!r}"
                )
            else:
                warnings.append(f"{sheet}, {text}; patient {other.patient!r} has it twice")
    if faults:
        raise all_faults(
            f"{sheet}: {len(faults)} file(s) stand under two patients, who could come into two "
            "splits; take out the rows that are wrong, or give both rows the same patient",
            faults,
        )
    return warnings


def known_before(new: Sequence[Member], cohort: Sequence[Member], sheet: Path) -> list[str]:
    """Return warnings of new slides or cases that are in the cohort, by id, path or content.

    Args:
        new: those to predict.
        cohort: those that the model is trained and tested on.
        sheet: of the new ones.
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
        f"{sheet}, row {row}: {one.unit} {one.id!r} has the {what} of {other.id!r} of the cohort, "
        "in which the model is trained and tested: its prediction shows nothing new"
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
    """Divide groups by a key; left out is what stands alone, is not readable or has no key."""
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
