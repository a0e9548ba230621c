"""Which new slides or cases are in the cohort, by id, patient or pixels.

The prediction for a slide that the model was trained on shows nothing about new slides. A file with
a few bytes appended is another file with the same pixels, so the pixels are compared.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gigatile.cohort.names import same_names
from gigatile.report.inputs import CohortRow
from gigatile.report.records import HASHES, ReadRecord, hash_of, is_plain, read_tile, records_of
from gigatile.tables import write_table

COLUMNS = ("in_cohort", "patient", "split", "same", "equal_images")


@dataclass(frozen=True)
class Match:
    """A new slide or case, and one of the cohort that has something in common with it.

    Attributes:
        new: the id of the new one.
        known: the row of the cohort's table.
        same: what is the same: `id`, `patient`, `pixels`.
        images: number of equal tiles, or of equal channels of a case.
    """

    new: str
    known: CohortRow
    same: Sequence[str]
    images: int


@dataclass(frozen=True)
class InCohort:
    """The result of the comparison with the cohort.

    Attributes:
        matches: in the order of the new slides or cases.
        compared: ids in the cohort whose pixels were compared.
        missing: ids in the cohort whose records are missing, so their pixels were not compared.
    """

    matches: Sequence[Match]
    compared: Sequence[str]
    missing: Sequence[str]

    def of(self, new: str) -> list[Match]:
        """Return the matches of one new slide or case."""
        return [match for match in self.matches if match.new == new]

    @property
    def names(self) -> list[str]:
        """The ids of the new slides or cases with a match."""
        return list(dict.fromkeys(match.new for match in self.matches))

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
    read: ReadRecord,
) -> InCohort:
    """Compare new slides or cases with those of the cohort.

    Args:
        new: rows of the table of the new ones.
        new_folder: folder of their records.
        cohort: rows of the cohort's table.
        folder: folder of the cohort's records.
        read: reads one record.

    Raises:
        UserError: a record file is damaged, or one of a new slide or case is missing.
    """
    ids: dict[str, list[int]] = defaultdict(list)
    patients: dict[str, list[int]] = defaultdict(list)
    found = [np.empty(0, HASHES)]
    spelled = {name: same[0] for same in same_names(_patients(new, cohort)) for name in same}
    for index, row in enumerate(new):
        ids[row.id.casefold()].append(index)
        if row.patient:
            patients[spelled.get(row.patient, row.patient)].append(index)
        if row.state == "failed":
            continue
        images_of_new = [
            (hash_of(image), index, offset)
            for offset, record in records_of(new_folder / f"{row.id}.tfrecord", read)
            for image in record.images
        ]
        found.append(np.array(images_of_new, HASHES))
    # 12 bytes for each image: a set of numbers would take some hundred.
    hashes = np.concatenate(found)
    hashes = hashes[np.argsort(hashes["hash"], kind="stable")]
    numbers, owners = hashes["hash"].copy(), hashes["member"].copy()
    del hashes, found
    plain: dict[int, bool] = {}
    matches: list[tuple[int, Match]] = []
    compared, missing = [], []
    for known in cohort:
        same: dict[int, list[str]] = defaultdict(list)
        images: dict[int, int] = defaultdict(int)
        for index in ids.get(known.id.casefold(), ()):
            same[index].append("id")
        for index in patients.get(spelled.get(known.patient, known.patient), ()):
            same[index].append("patient")
        path = folder / f"{known.id}.tfrecord"
        if known.state != "failed" and not path.exists():
            missing.append(known.id)
        elif known.state != "failed":
            compared.append(known.id)
            for _, record in records_of(path, read):
                for image in record.images:
                    number = hash_of(image)
                    begin, end = (
                        int(np.searchsorted(numbers, np.uint64(number), side))
                        for side in ("left", "right")
                    )
                    if begin == end:
                        continue
                    if number not in plain:
                        plain[number] = read is read_tile and is_plain(image)
                    for index in () if plain[number] else set(owners[begin:end].tolist()):
                        images[index] += 1
        for index in images:
            same[index].append("pixels")
        matches += [
            (index, Match(new[index].id, known, what, images.get(index, 0)))
            for index, what in same.items()
        ]
    matches.sort(key=lambda match: match[0])
    return InCohort([match for _, match in matches], compared, missing)


def _patients(*tables: Sequence[CohortRow]) -> list[str]:
    return list(dict.fromkeys(row.patient for table in tables for row in table if row.patient))
