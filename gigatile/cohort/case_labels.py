"""Propose the label convention of the cases of a folder; the user has to confirm it."""

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

# Names of BraTS 2023 and later: challenge, patient, examination.
EXAMINED = re.compile(r"(?P<patient>BraTS-(?P<challenge>[A-Za-z]+)-\d+)-\d+")
_BRATS_2017_TO_2021 = re.compile(r"Bra[tT][sS](17|18|19|20|2021)_.*")
# Largest number of segmentations that are read to find the label values.
MAX_READ = 10


def convention_of_name(case: str) -> str:
    """Return the convention that the name of a case implies, or "" if there is none."""
    examined = EXAMINED.fullmatch(case)
    if examined and examined["challenge"].upper() in ("GLI", "MEN", "MET", "SSA"):
        return "brats2023"
    return "brats2017" if _BRATS_2017_TO_2021.fullmatch(case) else ""


def declared_by_names(cases: Sequence[str], folder: Path) -> Declared | None:
    """Return the convention that the names of all cases imply; None if there is none.

    Raises:
        UserError: the names imply two conventions. In a run, a value can have only one meaning.
    """
    counts = Counter(map(convention_of_name, cases))
    known = {name: count for name, count in counts.items() if name}
    if len(known) > 1:
        listed = ", ".join(f"{count} of {name}" for name, count in sorted(known.items()))
        raise UserError(
            f"{folder}: contains several data sets whose labels have different meanings: {listed} "
            "by the names of the cases; call the command once for each data set"
        )
    if len(counts) != 1 or not known:
        return None
    (convention,) = known
    values = VolumeSettings.model_validate({"labels": convention}).label_values
    reason = f"the names of the cases are those of {_YEARS[convention]}, such as {cases[0]}"
    return Declared((), values, {}, convention, (), (), reason)


_YEARS = {"brats2017": "BraTS 2017 to 2021", "brats2023": "BraTS 2023 and later"}


def values_found(segmentations: Mapping[str, Path]) -> tuple[dict[int, int], list[str]]:
    """Read the first ten segmentations and count the label values.

    Args:
        segmentations: by id of the case.

    Returns:
        For each value, 1-255, the number of segmentations with it; and a remark for each file that
        cannot be read or has other values.
    """
    counts: Counter[int] = Counter()
    remarks = []
    all_values = {f"value_{value}": value for value in range(1, 256)}
    for case, path in list(segmentations.items())[:MAX_READ]:
        try:
            labels = open_volume(path).read_labels(all_values)
        except VolumeError as error:
            remarks.append(f"{case}: its segmentation cannot be read: {error}")
            continue
        counts.update(np.flatnonzero(np.bincount(labels.ravel(), minlength=256)[1:]) + 1)
    return {int(value): count for value, count in sorted(counts.items())}, remarks


def conventions_with(values: Mapping[int, int]) -> list[str]:
    """Return the conventions that include all of these values."""
    return [name for name, known in CONVENTIONS.items() if set(values) <= set(known.values())]


def label_remarks(declared: Declared | None, segmentations: Mapping[str, Path]) -> list[str]:
    """Return remarks on the source of the proposed labels, and on segmentations that do not fit.

    Args:
        declared: the proposed labels; None: there are none.
        segmentations: by id of the case.
    """
    values, remarks = values_found(segmentations)
    read = min(MAX_READ, len(segmentations))
    counts = ", ".join(f"{value} in {count}" for value, count in values.items()) or "none"
    observed = f"values found in {read} of {len(segmentations)} segmentation(s): {counts}"
    if declared is not None:
        proposed = declared.convention or declared.labels
        remarks.append(
            f"volumes.labels: {proposed} is proposed, since {declared.reason}; {observed}"
        )
        wrong = sorted(set(values) - set(declared.labels.values()))
        if wrong:
            remarks.append(
                f"volumes.labels: {', '.join(map(str, wrong))} is not among these labels; cases "
                "with it will fail: name your labels one by one"
            )
        return remarks
    fitting = ", ".join(conventions_with(values)) or "none"
    remarks.append(
        f"volumes.labels: none is proposed, since there is no dataset.json and the names of the "
        f"cases imply none; {observed}; conventions that have these values: {fitting}. Look up "
        "which one your data set follows: the values alone do not show it"
    )
    return remarks
