"""Checks that the model was not trained on test patients, images or pixels.

Every number is counted again from tables and records, and compared with what the stages recorded.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pydantic import ValidationError

from gigatile.cohort.names import same_names
from gigatile.cohort.sheet import Member
from gigatile.cohort.splits import SplitProof, assign
from gigatile.errors import UserError
from gigatile.files import combined_checksum
from gigatile.records.manifest import Manifest
from gigatile.report.inputs import Chosen, CohortRow
from gigatile.report.provenance import Ledger
from gigatile.report.records import RecordKind
from gigatile.report.shard_contents import Contents
from gigatile.settings.split import SPLITS

# Losses in history.tsv have six decimals.
ROUNDING = 1e-6
PAIRS = tuple(combinations(SPLITS, 2))


@dataclass(frozen=True)
class Check:
    """A claim, and what contradicts it.

    Attributes:
        claim: what must be true.
        faults: everything that contradicts it.
        counted: what was compared.
        checked: False: an input for this check was not given.
    """

    claim: str
    faults: list[str]
    counted: str
    checked: bool = True


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the checks compare.

    Attributes:
        unit: `slide` or `case`.
        kind: what a record contains.
        cohort: the rows of the cohort's table.
        sheet: the rows of the sample sheet; None: it was not given.
        image_files: split, fingerprint and name of each image file of the cohort.
        positions: split, hash of the positions of its tiles, and name of each slide with imported
            embeddings.
        manifest_faults: contradictions between the manifest and the table.
        contents: of the shards.
        scored: for each scored slide or case, its attributes in the evaluation, by name.
        chain: whether shards, model and evaluation belong together.
        chosen: the epoch of the model.
        criterion: the metric of the validation by which the task chooses it.
        history: for each column of history.tsv, a value for each epoch.
        initial: checks of the cohort that the initial weights were trained on.
    """

    unit: str
    kind: RecordKind
    splits: SplitProof
    cohort: Sequence[CohortRow]
    sheet: Sequence[Member] | None
    image_files: Sequence[tuple[str, str, str]]
    positions: Sequence[tuple[str, str, str]] = ()
    manifest_faults: Sequence[str]
    contents: Contents
    scored: Mapping[str, Mapping[str, str | None]]
    chain: Check
    chosen: Chosen
    criterion: str
    history: Mapping[str, Sequence[float]]
    initial: Sequence[Check] = ()


def leakage_checks(evidence: Evidence) -> list[Check]:
    """Return all checks of a run; those of patients in two splits come first."""
    unit, kind, contents = evidence.unit, evidence.kind, evidence.contents
    cohort, scored = evidence.cohort, evidence.scored
    labelled = any(row.label for row in cohort)
    checks = [
        *_patient_checks(evidence.splits, cohort),
        *([_site_check(evidence)] if evidence.splits.by == "site" else []),
        _sheet_check(evidence),
        _same_check(
            "no image file is in two splits", evidence.image_files, "fingerprints", "files"
        ),
        *(
            [
                _same_check(
                    f"no {unit}s in two splits have tiles at the same positions",
                    evidence.positions,
                    "patterns of tiles",
                    f"{unit}s",
                )
            ]
            if evidence.positions
            else []
        ),
        Check(
            f"no {kind.image}s in two splits have the same pixels",
            contents.shared,
            f"{contents.images:,} {kind.image}s compared",
        ),
    ]
    if kind.segmented:
        checks.append(
            Check(
                f"no {unit}s in two splits have the same segmentation",
                contents.labels_shared,
                f"{contents.labels:,} segmentations compared",
            )
        )
    return [
        *checks,
        *evidence.initial,
        Check(
            f"the shards contain exactly the {kind.record}s of train and valid",
            [*evidence.manifest_faults, *contents.faults],
            f"{contents.records:,} {kind.record}s read from the shards",
        ),
        Check(
            f"every scored {unit} is a test {unit} with the "
            f"{'patient and label' if labelled else 'patient'} of the table",
            _scored_faults(cohort, scored),
            f"{len(scored)} scored {unit}s",
        ),
        Check(
            f"every usable test {unit} is scored",
            [
                f"{row.id} is not scored"
                for row in cohort
                if row.split == "test" and row.state != "failed" and row.id not in scored
            ],
            f"{sum(row.split == 'test' for row in cohort)} test {unit}s",
        ),
        Check(
            "the counts in splits.json are those of the table",
            _count_faults(evidence.splits, cohort, f"{unit}s"),
            f"{len(cohort)} rows counted",
        ),
        _choice_check(evidence),
        evidence.chain,
    ]


def patients_in_two_splits(checks: Sequence[Check]) -> list[str]:
    """Return the patients in two splits, from the checks that `leakage_checks` returns."""
    return list(dict.fromkeys(name for check in checks[: len(PAIRS)] for name in check.faults))


def _patient_checks(splits: SplitProof, cohort: Sequence[CohortRow]) -> list[Check]:
    """Check that no patient is in two splits, and no patient with two spellings of the id."""
    checks = []
    for first, second in PAIRS:
        stated = splits.shared_patients.get(f"{first}&{second}", [])
        patients = _patients(cohort, first), _patients(cohort, second)
        checks.append(
            Check(
                f"patients({first}) ∩ patients({second}) = ∅",
                sorted({*stated, *(patients[0] & patients[1])}),
                f"{len(patients[0])} and {len(patients[1])} patients",
            )
        )
    patients_of = _splits_by_name((row.patient, row.split) for row in cohort)
    checks.append(
        Check(
            "no patient's id is spelled in two ways across splits",
            _spelled_in_two_splits(patients_of),
            f"{len(patients_of)} ids, compared without case, blanks, kinds of dashes and "
            "look-alike letters",
        )
    )
    return checks


def _site_check(evidence: Evidence) -> Check:
    """Check that no site is in two splits, in any spelling."""
    sites = _splits_by_name((row.site, row.split) for row in evidence.cohort if row.site)
    torn = [site for site, splits in sites.items() if len(splits) > 1]
    is_given = evidence.sheet is not None
    return Check(
        "no site is in two splits, in any spelling",
        sorted({*torn, *_spelled_in_two_splits(sites)}),
        f"{len(sites)} sites" if is_given else "no sample sheet was given",
        checked=is_given,
    )


def _splits_by_name(names: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return the splits of each name, from pairs of a name and a split."""
    splits: dict[str, set[str]] = defaultdict(set)
    for name, split in names:
        splits[name].add(split)
    return splits


def _spelled_in_two_splits(splits: Mapping[str, set[str]]) -> list[str]:
    """Return the names of which two spellings are in different splits."""
    return sorted(
        " / ".join(sorted(names))
        for names in same_names(splits)
        if len(set().union(*(splits[name] for name in names))) > 1
    )


def _sheet_check(evidence: Evidence) -> Check:
    """Check the table against the sheet, and the splits against the seed."""
    claim = "patients, labels and splits are those of the sample sheet"
    sheet, splits = evidence.sheet, evidence.splits
    if sheet is None:
        return Check(claim, [], "no sample sheet was given", checked=False)
    try:
        settings = splits.settings()
    except (KeyError, ValidationError):
        return Check(claim, ["splits.json has no valid shares and seed"], "splits.json")
    try:
        split_of = assign(sheet, settings)
    except UserError as error:  # such as a site with two fixed splits
        return Check(claim, [str(error)], f"{len(sheet)} rows")
    rows = {row.id: row for row in evidence.cohort}
    faults = [f"{name} is not in the sheet" for name in rows.keys() - {m.id for m in sheet}]
    for member in sheet:
        row = rows.get(member.id)
        if row is None:
            faults.append(f"{member.id} is not in the table")
            continue
        expected = {
            "patient": member.patient,
            "split": split_of[member.patient],
            "label": member.label,
        }
        faults += [
            f"{member.id}: {name} is {getattr(row, name)!r}, must be {value!r}"
            for name, value in expected.items()
            if getattr(row, name) != value
        ]
    return Check(claim, sorted(faults), f"{len(sheet)} rows, seed {splits.seed}")


def _same_check(claim: str, files: Sequence[tuple[str, str, str]], prints: str, unit: str) -> Check:
    """Check that nothing is in two splits.

    Args:
        claim: of the check.
        files: split, fingerprint and name of each.
        prints, unit: what was compared, for the reader.
    """
    by_fingerprint: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for split, fingerprint, name in files:
        by_fingerprint[fingerprint].append((split, name))
    return Check(
        claim,
        [
            " = ".join(name for _, name in same)
            for same in by_fingerprint.values()
            if len({split for split, _ in same}) > 1
        ],
        f"{len(by_fingerprint)} {prints} of {len(files)} {unit}",
    )


def manifest_faults(
    manifest: Manifest, rows: Iterable[CohortRow], kind: RecordKind, unit: str, folder: str
) -> list[str]:
    """Return the contradictions between the manifest and the table: numbers and checksums.

    Args:
        rows: of the table, without the slides or cases that have no records.
        folder: name of the folder of the records in the run.
    """
    faults = []
    rows = list(rows)
    for split in ("train", "valid"):
        in_split = [row for row in rows if row.split == split]
        counts = Counter({row.label: 0 for row in in_split})
        for row in in_split:
            counts[row.label] += row.records
        part = manifest.splits.get(split)
        stated = dict(part.by_label or {"": part.records}) if part else {}
        faults += [
            f"{split}{label and f', {label}'}: {stated.get(label, 0)} {kind.record}s in the "
            f"shards, {counts[label]} in the table"
            for label in sorted({*stated, *counts})
            if stated.get(label, 0) != counts[label]
        ]
        sums = combined_checksum({f"{folder}/{row.id}.tfrecord": row.sha256 for row in in_split})
        if manifest.inputs.get(f"{folder}/<{unit}>.tfrecord of {split}") != sums:
            faults.append(f"{split}: the shards were written from other records")
    return faults + ["test is in the shards"] * ("test" in manifest.splits)


def chain_check(
    ledger: Ledger, epoch: int, trained: Mapping[str, str], evaluated: Mapping[str, Sequence[str]]
) -> Check:
    """Check that the model was trained on these shards, and that this model was evaluated.

    A different checksum is an error before this check, which finds the missing ones.

    Args:
        ledger: the files of the report.
        epoch: of the model.
        trained: the inputs in the model's settings.
        evaluated: for each file, the inputs of which it must have the checksums.
    """
    checked = {(entry.by, entry.name) for entry in ledger.recorded if entry.checked}
    faults = [
        f"{by} has no checksum of {name}"
        for by, names in evaluated.items()
        for name in names
        if (by, name) not in checked
    ]
    model = next(entry.sha256 for entry in ledger.entries if entry.name == "model/model.keras")
    if trained.get(f"segments/{epoch:04d}.keras") != model:
        faults.append(f"model/model.keras is not the trained model of epoch {epoch}")
    checksums = sum(map(len, evaluated.values())) + 1
    return Check(
        "the model was trained on these shards, and this model was evaluated",
        faults,
        f"{checksums} checksums, from the shards to the metrics",
    )


def _choice_check(evidence: Evidence) -> Check:
    """Check that the model of the run is the one with the best validation.

    Choosing it by the test split, or afterwards by another metric, would be a leak.
    """
    chosen, history, name = evidence.chosen, evidence.history, evidence.criterion
    least = name == "loss"
    faults = []
    if chosen.criterion != name:
        faults.append(f"the model was chosen by {chosen.criterion}; must be {name}")
    stated = (
        {"loss": chosen.valid_loss} if least else {"loss": chosen.valid_loss, name: chosen.value}
    )
    for metric, value in stated.items():
        in_history = _validated(history, metric).get(chosen.epoch)
        if in_history is None or value is None or not abs(in_history - value) <= ROUNDING:
            faults.append(f"history.tsv has another validation {metric} of epoch {chosen.epoch}")
    values = _validated(history, name)
    sign = 1 if least else -1
    best = min(values, key=lambda epoch: sign * values[epoch], default=chosen.epoch)
    if not faults and sign * (values[chosen.epoch] - values[best]) > ROUNDING:
        faults.append(
            f"epoch {best} has {'less' if least else 'more'} validation {name} than epoch "
            f"{chosen.epoch}"
        )
    if len(values) != chosen.validated:
        faults.append(
            f"history.tsv has {len(values)} validated epochs, must have {chosen.validated}"
        )
    return Check(
        f"the model is that of the epoch with the {'least' if least else 'highest'} validation "
        f"{name}",
        faults,
        f"validated epochs: {len(values)}",
    )


def _validated(history: Mapping[str, Sequence[float]], metric: str) -> dict[int, float]:
    """Return a metric of the validation by epoch; empty: history.tsv does not have it."""
    values = history.get(f"valid_{metric}", ())
    return {
        int(epoch): value
        for epoch, value in zip(history["epoch"], values, strict=False)
        if not math.isnan(value)
    }


def _scored_faults(
    cohort: Sequence[CohortRow], scored: Mapping[str, Mapping[str, str | None]]
) -> list[str]:
    """Return the scored slides or cases that are not test samples, or differ from the table."""
    rows = {row.id: row for row in cohort}
    faults = []
    for name, stated in scored.items():
        row: Any = rows.get(name)
        if row is None:
            faults.append(f"{name} is not in the cohort")
        elif row.split != "test":
            faults.append(f"{name} is in {row.split}")
        elif row.state == "failed":
            faults.append(f"{name} has the state failed")
        else:
            faults += [
                f"{name} has another {attribute} in the table"
                for attribute, value in stated.items()
                if getattr(row, attribute) != value
            ]
    return faults


def _count_faults(splits: SplitProof, cohort: Sequence[CohortRow], units: str) -> list[str]:
    """Return the splits for which splits.json has other counts than the table."""
    faults = []
    for name, stated in splits.splits.items():
        rows = [row for row in cohort if row.split == name]
        patients = len({row.patient for row in rows})
        if (patients, len(rows)) != (stated.patients, stated.members):
            faults.append(
                f"{name}: {stated.patients} patients and {stated.members} {units} in splits.json, "
                f"{patients} and {len(rows)} in the table"
            )
    return faults


def _patients(cohort: Sequence[CohortRow], split: str) -> set[str]:
    return {row.patient for row in cohort if row.split == split}
