"""Patients into train, valid and test: one cohort each, the same on every machine, and proved.

A patient's split follows from a keyed hash of its id and the seed, and from nothing else. So it is
the same on every machine, and no patient moves because another came or went.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from gigatile.cohort.sheet import Member
from gigatile.errors import all_faults
from gigatile.settings.split import SPLITS, SplitSettings


def classes_of(members: Iterable[Member]) -> list[str]:
    """Return the labels of a cohort in the order of a classifier's outputs; none of cases."""
    return sorted({member.label for member in members if member.label})


def split_of(patient: str, settings: SplitSettings) -> str:
    """Return the split of a patient whom no sheet fixes.

    BLAKE2b of the id, keyed with the seed, gives a number that is uniform in [0, 1); the wanted
    shares cut that interval.
    """
    digest = hashlib.blake2b(patient.encode(), key=str(settings.seed).encode(), digest_size=8)
    position = int.from_bytes(digest.digest(), "big") / 2**64
    if position < settings.train:
        return "train"
    return "valid" if position < settings.train + settings.valid else "test"


def assign(members: Sequence[Member], settings: SplitSettings) -> dict[str, str]:
    """Return the split of each patient; one that the sheet fixes in any row holds."""
    fixed = {member.patient: member.split for member in members if member.split}
    patients = {member.patient for member in members}
    return {p: fixed.get(p) or split_of(p, settings) for p in sorted(patients)}


def rows_of_splits(
    members: Iterable[Member], settings: SplitSettings, *splits: str
) -> list[dict[str, str]]:
    """Return the rows of some splits in the sheet's order: slide, patient, label and split.

    Of cases, which have no label: case, patient and split.
    """
    members = list(members)
    divided = assign(members, settings)
    return [
        {member.unit: member.id, "patient": member.patient}
        | ({"label": member.label} if member.label else {})
        | {"split": divided[member.patient]}
        for member in members
        if divided[member.patient] in splits
    ]


def checksum_of(rows: Iterable[Mapping[str, str]]) -> str:
    """Return a SHA-256 of what rows say, in whatever order they stand in the sheet."""
    text = json.dumps(sorted(list(row.values()) for row in rows), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def describe(
    members: Sequence[Member], splits: Mapping[str, str], settings: SplitSettings
) -> dict[str, Any]:
    """Count patients and slides (or cases) per split and label; show that no two share a patient.

    The shares are of a label's patients. A patient with slides of several labels counts once under
    each of them.
    """
    labels, units = classes_of(members), f"{members[0].unit}s"
    in_split = {split: [m for m in members if splits[m.patient] == split] for split in SPLITS}
    patients_in = {split: {m.patient for m in found} for split, found in in_split.items()}
    of_label = {label: {m.patient for m in members if m.label == label} for label in labels}
    everybody = {member.patient for member in members}
    summary = {}
    for split in SPLITS:
        by_label = {}
        for label in labels:
            found = [m for m in in_split[split] if m.label == label]
            patients = {m.patient for m in found}
            by_label[label] = {
                "patients": len(patients),
                units: len(found),
                "share": round(len(patients) / len(of_label[label]), 4),
                "wanted": getattr(settings, split),
            }
        summary[split] = {
            "patients": len(patients_in[split]),
            units: len(in_split[split]),
            "share": round(len(patients_in[split]) / len(everybody), 4),
            "by_label": by_label,
        }
    return {
        "seed": settings.seed,
        "shares": {split: getattr(settings, split) for split in SPLITS},
        "labels": labels,
        "splits": summary,
        "shared_patients": {
            f"{one}&{two}": sorted(patients_in[one] & patients_in[two])
            for one, two in combinations(SPLITS, 2)
        },
    }


def check_labels(members: Sequence[Member], splits: Mapping[str, str], sheet: Path) -> None:
    """Refuse a division in which some split lacks a label: nothing could be learnt or tested.

    Of cases, which have no label, each split needs a patient.

    Raises:
        UserError: every label and split that is concerned, and what can be done.
    """
    faults = []
    classes = classes_of(members)
    for label in classes or [""]:
        patients = {member.patient for member in members if member.label == label}
        for split in SPLITS:
            if not any(splits[patient] == split for patient in patients):
                faults.append(
                    f"no patient with label {label!r} in {split} (the sheet has {len(patients)} "
                    f"patient(s) with that label)"
                    if label
                    else f"no patient in {split} (the sheet has {len(patients)})"
                )
    if len(classes) == 1:
        faults.append(f"only one label, {classes[0]!r}; a classifier needs two")
    if faults:
        # In the heading, since a message that is too long loses its end.
        lacks = "A label that a split lacks" if classes else "What a split lacks"
        heading = (
            f"{sheet}: the division into splits cannot be used. {lacks} can be "
            f"had by another seed (python scripts/choose_split_seed.py {sheet}), by the sheet's "
            "column `split`, or by more patients"
        )
        raise all_faults(heading, faults)


def imbalance(
    members: Sequence[Member], splits: Mapping[str, str], settings: SplitSettings
) -> float:
    """Return the largest distance, over splits and labels, of a share from the wanted one.

    Infinite when some split lacks some label, or has no patient.
    """
    worst = 0.0
    for split, part in describe(members, splits, settings)["splits"].items():
        whole = {"patients": part["patients"], "share": part["share"]}
        for counts in part["by_label"].values() or [whole]:
            if not counts["patients"]:
                return float("inf")
            worst = max(worst, abs(counts["share"] - getattr(settings, split)))
    return worst


def best_seed(
    members: Sequence[Member], settings: SplitSettings, tries: int
) -> list[tuple[float, int]]:
    """Try seeds 0 … tries-1; return (imbalance, seed), best first and ties by the smaller seed.

    Choosing a seed by balance alone is honest: neither images nor results are looked at.
    """
    found = []
    for seed in range(tries):
        candidate = settings.model_copy(update={"seed": seed})
        found.append((imbalance(members, assign(members, candidate), candidate), seed))
    return sorted(found)
