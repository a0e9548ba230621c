"""Which label convention the cases of a folder follow, and why; it is proposed, never assumed."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gigatile.cohort.declared import Declared
from gigatile.errors import UserError
from gigatile.settings.volumes import CONVENTIONS, VolumeSettings
from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.reader import open_volume

# Of BraTS 2023 and after: the challenge, the patient, which examination.
EXAMINED = re.compile(r"(?P<patient>BraTS-(?P<challenge>[A-Za-z]+)-\d+)-\d+")
_BRATS_2017_TO_2021 = re.compile(r"Bra[tT][sS](17|18|19|20|2021)_.*")
# Segmentations that are read to see which values occur.
MOST_READ = 10


def convention_of_name(case: str) -> str:
    """Return the convention that the name of a case implies, or "" where it implies none."""
    examined = EXAMINED.fullmatch(case)
    if examined and examined["challenge"].upper() in ("GLI", "MEN", "MET", "SSA"):
        return "brats2023"
    return "brats2017" if _BRATS_2017_TO_2021.fullmatch(case) else ""


def declared_by_names(cases: Sequence[str], folder: Path) -> Declared | None:
    """Return the convention that all cases imply by their names; None where they imply none.

    Raises:
        UserError: the cases follow two conventions. In one run a value has one meaning only.
    """
    counts = Counter(map(convention_of_name, cases))
    known = {name: count for name, count in counts.items() if name}
    if len(known) > 1:
        listed = ", ".join(f"{count} of {name}" for name, count in sorted(known.items()))
        raise UserError(
            f"{folder}: holds several data sets whose labels have different meanings: {listed} by "
            "the names of the cases; call the command once for each data set"
        )
    if len(counts) != 1 or not known:
        return None
    (convention,) = known
    values = VolumeSettings.model_validate({"labels": convention}).label_values
    reason = f"the names of the cases are those of {_YEARS[convention]}, as {cases[0]}"
    return Declared((), values, {}, convention, (), (), reason)


_YEARS = {"brats2017": "BraTS 2017 to 2021", "brats2023": "BraTS 2023 and later"}


def values_found(segmentations: Mapping[str, Path]) -> tuple[dict[int, int], list[str]]:
    """Read segmentations, the first ten, for the label values that occur.

    Args:
        segmentations: from the id of a case to its segmentation.

    Returns:
        From each value, 1-255, to the number of segmentations that have it; and a remark for each
        file that could not be read, or that has other values.
    """
    found: Counter[int] = Counter()
    remarks = []
    every = {f"value_{value}": value for value in range(1, 256)}
    for case, path in list(segmentations.items())[:MOST_READ]:
        try:
            labels = open_volume(path).read_labels(every)
        except VolumeError as error:
            remarks.append(f"{case}: its segmentation cannot be read: {error}")
            continue
        found.update(np.flatnonzero(np.bincount(labels.ravel(), minlength=256)[1:]) + 1)
    return {int(value): count for value, count in sorted(found.items())}, remarks


def conventions_with(values: Mapping[int, int]) -> list[str]:
    """Return the conventions that have all of some values."""
    return [name for name, known in CONVENTIONS.items() if set(values) <= set(known.values())]


def label_remarks(declared: Declared | None, segmentations: Mapping[str, Path]) -> list[str]:
    """Say where the proposed labels come from, and whether the segmentations fit them.

    Args:
        declared: the labels that are proposed; None: none are.
        segmentations: from the id of a case to its segmentation.
    """
    values, remarks = values_found(segmentations)
    read = min(MOST_READ, len(segmentations))
    counts = ", ".join(f"{value} in {count}" for value, count in values.items()) or "none"
    seen = f"values found in {read} of {len(segmentations)} segmentation(s): {counts}"
    if declared is not None:
        proposed = declared.convention or declared.labels
        remarks.append(f"volumes.labels: {proposed} is proposed, since {declared.reason}; {seen}")
        wrong = sorted(set(values) - set(declared.labels.values()))
        if wrong:
            remarks.append(
                f"volumes.labels: {', '.join(map(str, wrong))} is not among these labels; cases "
                "with it will be refused: name your labels one by one"
            )
        return remarks
    fitting = ", ".join(conventions_with(values)) or "none"
    remarks.append(
        f"volumes.labels: none is proposed, since neither a dataset.json nor the names of the "
        f"cases tell; {seen}; conventions that have these values: {fitting}. Look up which one "
        "your data set follows: values alone cannot tell"
    )
    return remarks
