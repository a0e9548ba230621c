"""Finds new slides or cases that are in the cohort: the same id, patient, pixels or file.

A prediction for a slide that the model was trained on shows nothing about new slides. Pixels are
compared, since a copy of a slide can have another name and other bytes at the end of its file.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gigatile.cohort.names import same_names
from gigatile.errors import UserError
from gigatile.report.inputs import CohortRow
from gigatile.report.records import HASHES, RecordKind, hash_of, iterate_records, records_file
from gigatile.tables import write_table

COLUMNS = ("in_cohort", "patient", "split", "same", "equal_images")


@dataclass(frozen=True)
class Match:
    """A new slide or case, and one of the cohort that has something in common with it.

    Attributes:
        new: the id of the new slide or case.
        known: the row of the cohort's table.
        same: what is the same: `id`, `patient`, `file`, `pixels`.
        images: number of equal tiles, or of equal channels of a case.
    """

    new: str
    known: CohortRow
    same: Sequence[str]
    images: int


@dataclass(frozen=True)
class CohortMatches:
    """The result of the comparison with the cohort.

    Attributes:
        matches: in the order of the new slides or cases, those with earlier cohorts last.
        compared: ids in the cohort whose pixels were compared.
        missing: ids in the cohort whose records are missing, so their pixels were not compared.
        what: was compared of them: their pixels or files.
        unit: of the cohort, if it is not that of the new ones.
        file: name of the table that `write` writes.
        is_unnamed: whether only hashes of the cohort are known, no ids and patients.
        doubt: why the model may have been trained on others, too; empty: it was not.
    """

    matches: Sequence[Match]
    compared: Sequence[str]
    missing: Sequence[str]
    what: str = "pixels"
    unit: str = ""
    file: str = "in_cohort.tsv"
    is_unnamed: bool = False
    doubt: str = ""

    def matches_of(self, new: str) -> list[Match]:
        """Return the matches of one new slide or case."""
        return [match for match in self.matches if match.new == new]

    @property
    def names(self) -> list[str]:
        """The ids of the new slides or cases with a match."""
        return list(dict.fromkeys(match.new for match in self.matches))

    def with_earlier(self, earlier: "CohortMatches", name: str) -> "CohortMatches":
        """Return these matches and those with the cohort of an earlier model.

        Args:
            earlier: the matches with that cohort.
            name: of its run, before the ids of its cohort.
        """

        def named(ids: Sequence[str]) -> list[str]:
            return [f"{name}/{known}" if known else known for known in ids]

        others = [
            replace(match, known=replace(match.known, id=named([match.known.id])[0]))
            for match in earlier.matches
        ]
        return replace(
            self,
            matches=[*self.matches, *others],
            compared=[*self.compared, *named(earlier.compared)],
            missing=[*self.missing, *named(earlier.missing)],
        )

    def write(self, path: Path, unit: str) -> None:
        """Write a table with a row for each match; `unit` is `slide` or `case`."""
        rows = [
            (m.new, m.known.id, m.known.patient, m.known.split, ", ".join(m.same), m.images)
            for m in self.matches
        ]
        write_table(path, (unit, *COLUMNS), rows)


def compare_with_cohort(
    new: Sequence[CohortRow],
    new_folder: Path,
    cohort: Sequence[CohortRow],
    folder: Path,
    kind: RecordKind,
    file_of: Callable[[CohortRow, Path], str | None] = lambda row, folder: None,
) -> CohortMatches:
    """Compare new slides or cases with those of the cohort.

    Args:
        new: rows of the table of the new slides or cases.
        new_folder: folder of their records.
        cohort: rows of the cohort's table.
        folder: folder of the cohort's records.
        kind: what a record contains.
        file_of: returns the fingerprint of the file of a row, from the folder of its records; None:
            not known.

    Raises:
        UserError: a record file is damaged, or one of a new slide or case is missing.
    """
    ids: dict[str, list[int]] = defaultdict(list)
    patients: dict[str, list[int]] = defaultdict(list)
    files: dict[str, list[int]] = defaultdict(list)
    spelling = {name: same[0] for same in same_names(_patients(new, cohort)) for name in same}
    for index, row in enumerate(new):
        ids[row.id.casefold()].append(index)
        if row.patient:
            patients[spelling.get(row.patient, row.patient)].append(index)
        if file := file_of(row, new_folder):
            files[file].append(index)
    images_of_new = _ImageIndex(new, new_folder, kind)
    matches: list[tuple[int, Match]] = []
    compared, missing = [], []
    for known in cohort:
        same: dict[int, list[str]] = defaultdict(list)
        for index in ids.get(known.id.casefold(), ()):
            same[index].append("id")
        for index in patients.get(spelling.get(known.patient, known.patient), ()):
            same[index].append("patient")
        path = records_file(known, folder)
        images: dict[int, int] = defaultdict(int)
        if known.state != "failed" and not path.exists():
            missing.append(known.id)
        elif known.state != "failed":
            compared.append(known.id)
            for index in files.get(file_of(known, folder) or "", ()):
                same[index].append("file")
            for _, record in iterate_records(known, folder, kind):
                for image in record.images:
                    for index in images_of_new.having(image):
                        images[index] += 1
        for index in images:
            same[index].append("pixels")
        matches += [
            (index, Match(new[index].id, known, what, images.get(index, 0)))
            for index, what in same.items()
        ]
    matches.sort(key=lambda match: match[0])
    return CohortMatches([match for _, match in matches], compared, missing)


def compare_with_images(
    new: Sequence[CohortRow], folder: Path, images: np.ndarray, kind: RecordKind
) -> CohortMatches:
    """Compare new slides or cases with hashes of the images of a cohort, which has no ids here.

    Args:
        new: rows of the table of the new slides or cases.
        folder: of their records.
        images: (n,) uint64, sorted: `hash_of` of the images of the cohort.
        kind: what a record contains.

    Raises:
        UserError: a record file is damaged or missing.
    """
    matches = []
    for index, hashes in enumerate(_hashes_by_row(new, folder, kind)):
        positions = np.searchsorted(images, hashes)
        is_known = positions < len(images)
        is_known[is_known] = images[positions[is_known]] == hashes[is_known]
        if count := int(is_known.sum()):
            matches.append(Match(new[index].id, _UNNAMED, ["pixels"], count))
    return CohortMatches(
        matches, [], [], f"pixels of {len(images):,} {kind.image}s", is_unnamed=True
    )


def read_images(path: Path) -> np.ndarray:
    """Read hashes of the images of a cohort: (n,) uint64, sorted.

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        images = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (ValueError, EOFError) as error:
        raise UserError(f"{path}: damaged ({error})") from None
    if images.ndim != 1 or images.dtype != np.uint64 or (images[1:] <= images[:-1]).any():
        raise UserError(f"{path}: damaged; must be sorted hashes of 64 bits")
    return images


def image_hashes(
    rows: Sequence[CohortRow], folder: Path, kind: RecordKind
) -> tuple[np.ndarray, int, int]:
    """Return hashes of all images of a cohort, so that copies of them can be found.

    Plain images, which two slides can share by chance, are left out.

    Args:
        rows: of the cohort's table.
        folder: of its records.
        kind: what a record contains.

    Returns:
        (n,) uint64, sorted, without duplicates; the number of rows with records, and of rows
        without.
    """
    usable = [row for row in rows if row.state != "failed"]
    compared = [row for row in usable if records_file(row, folder).exists()]
    hashes = np.concatenate([np.empty(0, np.uint64), *_hashes_by_row(compared, folder, kind)])
    return np.unique(hashes), len(compared), len(usable) - len(compared)


# A slide, case or image of a cohort of which only hashes are known.
_UNNAMED = CohortRow(id="", patient="", split="", state="", records=0, sha256="")


def _hashes_by_row(
    rows: Sequence[CohortRow], folder: Path, kind: RecordKind
) -> Iterator[np.ndarray]:
    """Yield the hashes of the images of each row that are not plain: (n,) uint64."""
    for row in rows:
        hashes = [
            hash_of(image)
            for _, record in (iterate_records(row, folder, kind) if row.state != "failed" else ())
            for image in record.images
            if not (kind.is_plain and kind.is_plain(image))
        ]
        yield np.array(hashes, np.uint64)


class _ImageIndex:
    """Finds the new slides or cases that have an image. Takes 12 bytes for each image."""

    def __init__(self, new: Sequence[CohortRow], folder: Path, kind: RecordKind) -> None:
        hashes = np.concatenate([np.empty(0, HASHES), *_hashes(new, folder, kind)])
        hashes = hashes[np.argsort(hashes["hash"], kind="stable")]
        self._hashes, self._owners = hashes["hash"].copy(), hashes["member"].copy()
        self._is_plain = kind.is_plain
        self._plain: dict[int, bool] = {}

    def having(self, image: bytes) -> set[int]:
        """Return the indices of the new slides or cases; plain images are in none."""
        number = hash_of(image)
        begin, end = (
            int(np.searchsorted(self._hashes, np.uint64(number), side))
            for side in ("left", "right")
        )
        if begin == end:
            return set()
        if number not in self._plain:
            self._plain[number] = self._is_plain is not None and self._is_plain(image)
        return set() if self._plain[number] else set(self._owners[begin:end].tolist())


def _hashes(rows: Sequence[CohortRow], folder: Path, kind: RecordKind) -> Iterator[np.ndarray]:
    for index, row in enumerate(rows):
        if row.state != "failed":
            hashes = [
                (hash_of(image), index, offset)
                for offset, record in iterate_records(row, folder, kind)
                for image in record.images
            ]
            yield np.array(hashes, HASHES)


def _patients(*tables: Sequence[CohortRow]) -> list[str]:
    return list(dict.fromkeys(row.patient for table in tables for row in table if row.patient))
