"""The checks that nothing of the test cohort was trained on, for slides and for cases.

Every figure is counted again from rows and records; what a stage states about itself is compared
with that count.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pydantic import ValidationError

from gigatile.cohort.names import same_names
from gigatile.cohort.sheet import Member
from gigatile.cohort.splits import SplitProof, assign
from gigatile.files import combined_checksum
from gigatile.report.inputs import Chosen, CohortRow
from gigatile.report.provenance import Ledger
from gigatile.report.shard_contents import Contents
from gigatile.settings.split import SPLITS, SplitSettings

# Losses in history.tsv have six decimals.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Check:
    """A claim, and what contradicts it.

    Attributes:
        claim: what must hold.
        shared: everything found that contradicts it.
        counted: what the check looked at.
        checked: False: an input for this check was not given.
    """

    claim: str
    shared: list[str]
    counted: str
    checked: bool = True


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the checks compare.

    Attributes:
        unit: `slide` or `case`.
        splits: splits.json.
        cohort: the rows of the cohort's table.
        sheet: the rows of the sample sheet; None: it was not given.
        files: split, fingerprint and name of each file of the cohort.
        sharded: what the manifest states about its shards and the table contradicts.
        contents: what the shards contain.
        scored: for each scored slide or case, its attributes in the evaluation, by name.
        chain: whether shards, model and evaluation belong together.
        chosen: the epoch whose model is the model of the run.
        history: for each column of history.tsv, a value for each epoch.
    """

    unit: str
    splits: SplitProof
    cohort: Sequence[CohortRow]
    sheet: Sequence[Member] | None
    files: Sequence[tuple[str, str, str]]
    sharded: Sequence[str]
    contents: Contents
    scored: Mapping[str, Mapping[str, str | None]]
    chain: Check
    chosen: Chosen
    history: Mapping[str, Sequence[float]]


def leakage_checks(found: Evidence) -> list[Check]:
    """Return all checks of a run; those of patients in two splits come first."""
    unit, contents = found.unit, found.contents
    of_cases = unit == "case"
    checks = [
        *_patient_checks(found.splits, found.cohort),
        _sheet_check(found),
        _file_check(f"no {'image' if of_cases else unit} file is in two splits", found.files),
        Check(
            f"no {'images' if of_cases else 'tiles'} of two splits have the same pixels",
            contents.shared,
            f"{contents.images:,} {'channels of images' if of_cases else 'tiles'} compared",
        ),
    ]
    if of_cases:
        checks.append(
            Check(
                "no cases of two splits have the same segmentation",
                contents.labels_shared,
                f"{contents.labels:,} segmentations compared",
            )
        )
    return [
        *checks,
        Check(
            "the shards contain the "
            + (
                "prepared train and valid cases"
                if of_cases
                else "tiles of the train and valid slides"
            )
            + ", no more and no fewer",
            [*found.sharded, *contents.faults],
            f"{contents.records:,} {'cases' if of_cases else 'tiles'} read from the shards",
        ),
        Check(
            f"every scored {unit} is a test {unit}, with the "
            f"{'patient' if of_cases else 'patient and label'} of the table",
            _strangers(found.cohort, found.scored),
            f"{len(found.scored)} scored {unit}s",
        ),
        Check(
            f"every test {unit} that could be used is scored",
            [
                f"{one.id} is not scored"
                for one in found.cohort
                if one.split == "test" and one.state != "failed" and one.id not in found.scored
            ],
            f"{sum(one.split == 'test' for one in found.cohort)} test {unit}s",
        ),
        Check(
            "the counts in splits.json are those of the table",
            _miscounted(found.splits, found.cohort, f"{unit}s"),
            f"{len(found.cohort)} rows counted",
        ),
        _choice_check(found.chosen, found.history),
        found.chain,
    ]


def _patient_checks(splits: SplitProof, cohort: Sequence[CohortRow]) -> list[Check]:
    """Check that no patient is in two splits, and no patient with two spellings of the id."""
    checks = []
    for one, two in combinations(SPLITS, 2):
        stated = splits.shared_patients.get(f"{one}&{two}", [])
        counted = _patients(cohort, one) & _patients(cohort, two)
        checks.append(
            Check(
                f"patients({one}) ∩ patients({two}) = ∅",
                sorted({*stated, *counted}),
                f"{len(_patients(cohort, one))} and {len(_patients(cohort, two))} patients",
            )
        )
    splits_of: dict[str, set[str]] = defaultdict(set)
    for member in cohort:
        splits_of[member.patient].add(member.split)
    checks.append(
        Check(
            "no patient's id is spelled in two ways across splits",
            sorted(
                " / ".join(sorted(names))
                for names in same_names(splits_of)
                if len(set().union(*(splits_of[name] for name in names))) > 1
            ),
            f"{len(splits_of)} ids, compared without case, blanks, kinds of dashes and look-alike "
            "letters",
        )
    )
    return checks


def _sheet_check(found: Evidence) -> Check:
    """Check the table against the sheet, and the splits against the seed."""
    claim = "patients, labels and splits are those of the sample sheet"
    if found.sheet is None:
        return Check(claim, [], "no sample sheet was given", checked=False)
    try:
        settings = SplitSettings(
            **{split: found.splits.shares[split] for split in SPLITS}, seed=found.splits.seed
        )
    except (KeyError, ValidationError):
        return Check(claim, ["splits.json has no valid shares and seed"], "splits.json")
    divided = assign(found.sheet, settings)
    rows = {one.id: one for one in found.cohort}
    faults = [f"{name} is not in the sheet" for name in rows.keys() - {m.id for m in found.sheet}]
    for member in found.sheet:
        row = rows.get(member.id)
        if row is None:
            faults.append(f"{member.id} is not in the table")
            continue
        wanted = {"patient": member.patient, "split": divided[member.patient]}
        if found.unit == "slide":
            wanted["label"] = member.label
        faults += [
            f"{member.id}: {name} is {getattr(row, name)!r}, must be {value!r}"
            for name, value in wanted.items()
            if getattr(row, name) != value
        ]
    return Check(claim, sorted(faults), f"{len(found.sheet)} rows, seed {found.splits.seed}")


def _file_check(claim: str, files: Sequence[tuple[str, str, str]]) -> Check:
    """Check that no file is in two splits; `files` has split, fingerprint and name of each."""
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
        f"{len(by_fingerprint)} fingerprints of {len(files)} files",
    )


def other_records(
    stated: Mapping[str, str], members: Sequence[CohortRow], unit: str, folder: str
) -> list[str]:
    """Return the splits whose shards were written from other records than those of the table.

    Args:
        stated: the manifest's inputs.
        members: the rows of the table that have records.
        unit: `slide` or `case`.
        folder: name of the folder of the records in the run.
    """
    faults = []
    for split in ("train", "valid"):
        sums = combined_checksum(
            {f"{folder}/{one.id}.tfrecord": one.sha256 for one in members if one.split == split}
        )
        if stated.get(f"{folder}/<{unit}>.tfrecord of {split}") != sums:
            faults.append(f"{split}: the shards were written from other records")
    return faults


def chain_check(
    ledger: Ledger, epoch: int, trained: Mapping[str, str], evaluated: Mapping[str, Sequence[str]]
) -> Check:
    """Check that the model was trained on these shards, and that this model was evaluated.

    A checksum that differs has already ended the report; this check finds those that are missing.

    Args:
        ledger: the files of the report.
        epoch: the epoch whose model is the model of the run.
        trained: the inputs in the model's settings.
        evaluated: for each file, the inputs whose checksums it must have.
    """
    noted = {(one.by, one.name) for one in ledger.recorded if one.checked}
    faults = [
        f"{by} has no checksum of {name}"
        for by, names in evaluated.items()
        for name in names
        if (by, name) not in noted
    ]
    model = next(entry.sha256 for entry in ledger.entries if entry.name == "model/model.keras")
    if trained.get(f"segments/{epoch:04d}.keras") != model:
        faults.append(f"model/model.keras is not the trained model of epoch {epoch}")
    checksums = sum(map(len, evaluated.values())) + 1
    return Check(
        "the model was trained on these shards, and this model was evaluated",
        faults,
        f"{checksums} checksums, from the shards to the figures",
    )


def _choice_check(chosen: Chosen, history: Mapping[str, Sequence[float]]) -> Check:
    """Check that the validation loss decided which epoch's model is the model of the run.

    A choice by the test cohort would be a leak.
    """
    losses = {
        int(epoch): loss
        for epoch, loss in zip(history["epoch"], history["valid_loss"], strict=True)
        if loss == loss  # not NaN
    }
    faults = []
    if chosen.epoch not in losses or abs(losses[chosen.epoch] - chosen.valid_loss) > ROUNDING:
        faults.append(f"history.tsv has another validation loss of epoch {chosen.epoch}")
    elif losses[chosen.epoch] > min(losses.values()) + ROUNDING:
        best = min(losses, key=losses.__getitem__)
        faults.append(f"epoch {best} has less validation loss than epoch {chosen.epoch}")
    if len(losses) != chosen.of:
        faults.append(f"history.tsv has {len(losses)} validated epochs, must have {chosen.of}")
    return Check(
        "the model is that of the epoch with the least validation loss",
        faults,
        f"validated epochs: {len(losses)}",
    )


def _strangers(
    cohort: Sequence[CohortRow], scored: Mapping[str, Mapping[str, str | None]]
) -> list[str]:
    """Return the scored slides or cases that are not test ones, or differ from the table."""
    rows = {one.id: one for one in cohort}
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


def _miscounted(splits: SplitProof, cohort: Sequence[CohortRow], units: str) -> list[str]:
    """Return the splits for which splits.json has other counts than the table."""
    faults = []
    for name, stated in splits.splits.items():
        mine = [s for s in cohort if s.split == name]
        counted = (len({s.patient for s in mine}), len(mine))
        if counted != (stated.patients, stated.members):
            faults.append(
                f"{name}: {stated.patients} patients and {stated.members} {units} stated, "
                f"{counted[0]} and {counted[1]} counted"
            )
    return faults


def _patients(cohort: Sequence[CohortRow], split: str) -> set[str]:
    return {one.patient for one in cohort if one.split == split}
