"""Find files with the same content: under two patients, or in the cohort and to predict.

Only files of equal size can be equal. First a few kilobytes of these are compared; if they are
equal, the fingerprints are.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

from gigatile.cohort.sheet import Member
from gigatile.errors import all_faults
from gigatile.stores.addresses import address_of
from gigatile.stores.sources import fingerprint, first_bytes, size_and_time

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
                f"row {other.row}: file {address_of(again)} of {other.unit} {other.id!r} has the "
                f"same content as {address_of(path)} of {first.unit} {first.id!r} in row "
                f"{first.row}"
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
    by_id = {member.id.casefold(): member for member in cohort}
    copies = {
        member.row: (member, by_id[member.id.casefold()], "id")
        for member in new
        if member.id.casefold() in by_id
    }
    cohort_members = {id(member) for member in cohort}
    for same in equal_files([*cohort, *new]):
        known = [member for member, _ in same if id(member) in cohort_members]
        if known:
            others = [member for member, _ in same if id(member) not in cohort_members]
            copies |= {member.row: (member, known[0], "file") for member in others}
    return [
        f"{sheet}, row {row}: {copy.unit} {copy.id!r} has the {what} of {original.id!r} in the "
        "cohort; the model is trained and tested on the cohort, so the prediction shows nothing "
        f"about new {copy.unit}s"
        for row, (copy, original, what) in sorted(copies.items())
    ]


def equal_files(members: Iterable[Member]) -> list[list[_File]]:
    """Return groups of equal files, each in the order of the members."""
    files = [
        (member, path)
        for member in members
        for path in member.files
        if path != getattr(member, "segmentation", None)
    ]
    groups = _alike([files], lambda path: size_and_time(path)[0] or None)
    groups = _alike(groups, _beginning)
    return _alike(groups, fingerprint)


def _beginning(path: Path) -> str | None:
    if first_bytes(path, 1) == b"<":
        return None
    return fingerprint(path, blocks=3, block_bytes=4096)


def _alike(groups: Iterable[Sequence[_File]], key: Callable[[Path], Hashable]) -> list[list[_File]]:
    """Divide groups by a key; leave out single files, unreadable files and files without a key."""
    alike = []
    for group in groups:
        by_key: dict[Hashable, list[_File]] = defaultdict(list)
        known: dict[str, Hashable] = {}
        for member, path in group:
            name = os.fspath(path)
            if name not in known:
                try:
                    known[name] = key(path)
                except OSError:
                    known[name] = None
            if known[name] is not None:
                by_key[known[name]].append((member, path))
        alike += [same for same in by_key.values() if len(same) > 1]
    return alike
