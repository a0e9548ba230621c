"""Patients into train, valid and test: one cohort each, the same on every machine, and proved.

A patient's split follows from a keyed hash of its id and the seed, and from nothing else. So it is
the same on every machine, and no patient moves because another came or went.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from gigatile.cohort.samples import Sample, classes_of
from gigatile.errors import all_faults
from gigatile.settings.split import SPLITS, SplitSettings

COLUMNS = ("slide", "patient", "label", "split")


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


def assign(samples: Iterable[Sample], settings: SplitSettings) -> dict[str, str]:
    """Return the split of each patient; one that the sheet fixes for any of its slides holds."""
    fixed = {sample.patient: sample.split for sample in samples if sample.split}
    patients = {sample.patient for sample in samples}
    return {p: fixed.get(p) or split_of(p, settings) for p in sorted(patients)}


def rows_of_splits(
    samples: Iterable[Sample], settings: SplitSettings, *splits: str
) -> list[dict[str, str]]:
    """Return slide, patient, label and split of the slides of some splits, in the sheet's order."""
    samples = list(samples)
    divided = assign(samples, settings)
    return [
        dict(zip(COLUMNS, (s.slide, s.patient, s.label, divided[s.patient]), strict=True))
        for s in samples
        if divided[s.patient] in splits
    ]


def checksum_of(rows: Iterable[Mapping[str, str]]) -> str:
    """Return a SHA-256 of what rows say, in whatever order they stand in the sheet."""
    text = json.dumps(sorted(list(row.values()) for row in rows), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def describe(
    samples: list[Sample], splits: Mapping[str, str], settings: SplitSettings
) -> dict[str, Any]:
    """Count patients and slides per split and label, and show that no two splits share a patient.

    The shares are of a label's patients. A patient with slides of several labels counts once under
    each of them.
    """
    labels = classes_of(samples)
    slides_in = {split: [s for s in samples if splits[s.patient] == split] for split in SPLITS}
    patients_in = {split: {s.patient for s in slides} for split, slides in slides_in.items()}
    of_label = {label: {s.patient for s in samples if s.label == label} for label in labels}
    summary = {}
    for split in SPLITS:
        by_label = {}
        for label in labels:
            slides = [s for s in slides_in[split] if s.label == label]
            patients = {s.patient for s in slides}
            by_label[label] = {
                "patients": len(patients),
                "slides": len(slides),
                "share": round(len(patients) / len(of_label[label]), 4),
                "wanted": getattr(settings, split),
            }
        summary[split] = {
            "patients": len(patients_in[split]),
            "slides": len(slides_in[split]),
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


def check_labels(samples: list[Sample], splits: Mapping[str, str], sheet: Path) -> None:
    """Refuse a division in which some split lacks a label: nothing could be learnt or tested.

    Raises:
        UserError: every label and split that is concerned, and what can be done.
    """
    faults = []
    for label in classes_of(samples):
        mine = [sample for sample in samples if sample.label == label]
        patients = {sample.patient for sample in mine}
        for split in SPLITS:
            if not any(splits[patient] == split for patient in patients):
                faults.append(
                    f"no patient with label {label!r} in {split} (the sheet has {len(patients)} "
                    f"patient(s) with that label)"
                )
    if len(classes_of(samples)) < 2:
        faults.append(f"only one label, {classes_of(samples)[0]!r}; a classifier needs two")
    if faults:
        # In the heading, since a message that is too long loses its end.
        heading = (
            f"{sheet}: the division into splits cannot be used. A label that a split lacks can be "
            f"had by another seed (python scripts/choose_split_seed.py {sheet}), by the sheet's "
            "column `split`, or by more patients"
        )
        raise all_faults(heading, faults)


def imbalance(samples: list[Sample], splits: Mapping[str, str], settings: SplitSettings) -> float:
    """Return the largest distance, over splits and labels, of a label's share from the wanted one.

    Infinite when some split lacks some label.
    """
    worst = 0.0
    for part in describe(samples, splits, settings)["splits"].values():
        for counts in part["by_label"].values():
            if not counts["patients"]:
                return float("inf")
            worst = max(worst, abs(counts["share"] - counts["wanted"]))
    return worst


def best_seed(
    samples: list[Sample], settings: SplitSettings, tries: int
) -> list[tuple[float, int]]:
    """Try seeds 0 … tries-1; return (imbalance, seed), best first and ties by the smaller seed.

    Choosing a seed by balance alone is honest: neither images nor results are looked at.
    """
    found = []
    for seed in range(tries):
        candidate = settings.model_copy(update={"seed": seed})
        found.append((imbalance(samples, assign(samples, candidate), candidate), seed))
    return sorted(found)
