"""Assign every patient to train, valid or test, and prove that no patient is in two splits.

The split of a patient depends on the patient's id, the seed and the shares only. So adding or
removing other patients never moves a patient, and all slides of a patient are in one split. With
`split.by: site` this holds for whole sites. Folds are balanced by label, so there a patient's fold
depends on the other patients.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal

from pydantic import Field

from gigatile.cohort.names import same_names, shown
from gigatile.cohort.sheet import Member, has_outcome, is_required, stratum_of
from gigatile.errors import UserError, all_faults
from gigatile.json_models import JsonModel, UnitCounts
from gigatile.settings.section import PLACEHOLDER
from gigatile.settings.split import SPLITS, SplitSettings

# The number of the patients that no fold has; folds begin at 1.
HELD_OUT = 0
# Number of seeds that `usable_seed` tries.
SEEDS_TRIED = 1000
# It tries fewer if the sheet has more rows than this.
_MANY_ROWS = 1000


class LabelCounts(UnitCounts):
    """The counts of one label in one split.

    Attributes:
        patients: patients with this label. One with slides of several labels counts for each.
        unit: `slide` or `case`.
        members: slides or cases with this label.
        share: of all patients with this label.
        wanted: the share in the settings.
    """

    patients: int
    unit: str
    members: int
    share: float
    wanted: float


class SplitCounts(UnitCounts):
    """The counts of one split.

    Attributes:
        patients: the number of patients.
        unit: `slide` or `case`.
        members: the number of slides or cases.
        share: of all patients.
        by_label: the counts of each label; empty for cases.
    """

    patients: int
    unit: str
    members: int
    share: float | None = None
    by_label: dict[str, LabelCounts]


class SplitProof(JsonModel):
    """splits.json: the counts of each split, and the patients that two splits share.

    Attributes:
        seed: the seed of the split.
        shares: the shares in the settings, by split.
        labels: the labels in the order of a classifier's outputs; empty for cases.
        splits: the counts of each split.
        shared_patients: patients in two splits, by `train&valid` and so on; all must be empty.
        sheet_sha256: the checksum of the sample sheet.
        by, folds, fold, held_out: the settings, if they are not the default.
    """

    seed: int
    by: Literal["patient", "site"] = Field("patient", exclude_if=lambda by: by == "patient")
    folds: int | None = Field(None, exclude_if=lambda folds: folds is None)
    fold: int = Field(1, exclude_if=lambda fold: fold == 1)
    held_out: float = Field(0, exclude_if=lambda share: share == 0)
    shares: dict[str, float] = Field(default_factory=dict)
    labels: list[str]
    splits: dict[str, SplitCounts]
    shared_patients: dict[str, list[str]]
    sheet_sha256: str

    def settings(self) -> SplitSettings:
        """Return the settings of the splits.

        Raises:
            KeyError, ValidationError: the file has no valid settings.
        """
        keys = ("seed", "by", "folds", "fold", "held_out")
        named = {key: getattr(self, key) for key in keys}
        # With folds, the shares follow from them.
        shares = {} if self.folds else {split: self.shares[split] for split in SPLITS}
        return SplitSettings(**named, **shares)


def classes_of(members: Iterable[Member]) -> list[str]:
    """Return the labels in the order of a classifier's outputs; empty for cases and numbers."""
    return sorted({stratum for member in members if (stratum := stratum_of(member))})


def position_of(name: str, seed: int) -> float:
    """Return a number that is uniform in [0, 1): BLAKE2b of an id, keyed with the seed."""
    digest = hashlib.blake2b(name.encode(), key=str(seed).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big") / 2**64


def split_of(patient: str, settings: SplitSettings) -> str:
    """Return the split of a patient whose split the sheet does not fix.

    The shares divide the interval of the patient's position. With `by: site`, it is the site's.
    """
    position = position_of(patient, settings.seed)
    if position < settings.train:
        return "train"
    return "valid" if position < settings.train + settings.valid else "test"


def assign(members: Sequence[Member], settings: SplitSettings) -> dict[str, str]:
    """Return the split of each patient; a split in any row of the sheet takes precedence.

    Args:
        members: all rows of the sheet.
        settings: of the splits.

    Raises:
        UserError: with `by: site`, a patient has no site or two, or a site two spellings or two
            fixed splits; with folds, the sheet has fixed splits.
    """
    groups = _groups_of(members, settings)
    fixed = _fixed_splits(members, groups, settings)
    if settings.folds is None:
        return {p: fixed.get(group) or split_of(group, settings) for p, group in groups.items()}
    if fixed:
        raise UserError(
            f"split.folds: the sheet fixes the splits of {len(fixed)} {settings.by}(s), such as "
            f"{min(fixed)!r}; with folds, its column `split` must be empty"
        )
    folds = folds_of(members, settings)
    if settings.held_out:
        splits = {HELD_OUT: "test", settings.fold: "valid"}
    else:
        splits = {settings.fold: "test", settings.fold % settings.folds + 1: "valid"}
    return {patient: splits.get(folds[patient], "train") for patient in groups}


def _fixed_splits(
    members: Sequence[Member], groups: Mapping[str, str], settings: SplitSettings
) -> dict[str, str]:
    """Return the split of each group that the sheet fixes in any of its rows."""
    fixed: dict[str, set[str]] = {}
    for member in members:
        if member.split:
            fixed.setdefault(groups[member.patient], set()).add(member.split)
    if faults := [
        f"{settings.by} {group!r} is fixed to {' and '.join(sorted(splits))}"
        for group, splits in sorted(fixed.items())
        if len(splits) > 1
    ]:
        raise all_faults(f"each {settings.by} must be in one split", faults)
    return {group: splits.pop() for group, splits in fixed.items()}


def _groups_of(members: Sequence[Member], settings: SplitSettings) -> dict[str, str]:
    """Return what each patient stays together with: the patient itself, or the site."""
    patients = sorted({member.patient for member in members})
    if settings.by == "patient":
        return {patient: patient for patient in patients}
    sites: dict[str, set[str]] = {patient: set() for patient in patients}
    for member in members:
        sites[member.patient].add(member.site)
    faults = [
        f"patient {patient!r} has the sites {', '.join(map(repr, sorted(names)))}; must be one"
        if len(names) > 1
        else f"patient {patient!r} has no site"
        for patient, names in sites.items()
        if len(names) > 1 or "" in names
    ]
    faults += [
        f"one site is spelled in two ways: {', '.join(map(shown, names))}"
        for names in same_names(sorted(set().union(*sites.values())))
    ]
    if faults:
        raise all_faults("split.by: site needs the column `site` of the sheet", faults)
    return {patient: names.pop() for patient, names in sites.items()}


def folds_of(members: Sequence[Member], settings: SplitSettings) -> dict[str, int]:
    """Return the fold of each patient, from 1; each patient is tested in this fold only.

    Groups with a position above `1 - held_out` are in no fold: HELD_OUT.

    The groups (patients, or sites) are dealt one by one: the largest first, of equal ones label
    after label, and within a label in the order of their positions. Each goes to the fold that has
    the least of the group's labels, as shares of each label's patients; of equal ones to that with
    the fewest patients.

    Args:
        members: all rows of the sheet.
        settings: of the splits, with `folds`.

    Raises:
        UserError: see `assign`; or there are fewer groups than folds.
    """
    assert settings.folds is not None
    groups = _groups_of(members, settings)
    held_out = {
        g for g in groups.values() if position_of(g, settings.seed) >= 1 - settings.held_out
    }
    number: Counter[str] = Counter(group for group in groups.values() if group not in held_out)
    if len(number) < settings.folds:
        without = f" without the {len(held_out)} held out" if held_out else ""
        raise UserError(
            f"split.folds: {settings.folds} folds need as many {settings.by}s; the sheet has "
            f"{len(number)}{without}"
        )
    # Patients with each label, by group. Without labels, all have the same one.
    labels: dict[str, Counter[str]] = {group: Counter() for group in number}
    for patient, label in {(member.patient, stratum_of(member)) for member in members}:
        if groups[patient] not in held_out:
            labels[groups[patient]][label] += 1
    total = sum(labels.values(), Counter[str]())
    dealt = [Counter[str]() for _ in range(settings.folds)]
    patients = [0] * settings.folds
    chosen = dict.fromkeys(held_out, HELD_OUT)
    order = sorted(
        number, key=lambda g: (-number[g], sorted(labels[g]), position_of(g, settings.seed), g)
    )
    for group in order:
        own = labels[group]
        fold = min(
            range(settings.folds),
            key=lambda f: (
                sum(dealt[f][label] * own[label] / total[label] for label in sorted(own)),
                patients[f],
                f,
            ),
        )
        dealt[fold] += own
        patients[fold] += number[group]
        chosen[group] = fold + 1
    return {patient: chosen[group] for patient, group in groups.items()}


def rows_of_splits(
    members: Iterable[Member], settings: SplitSettings, *splits: str
) -> list[dict[str, str]]:
    """Return a row per member of some splits, in the order of the sheet.

    A row has the columns slide (or case), patient, label (if there is one) and split.
    """
    members = list(members)
    assigned = assign(members, settings)
    return [
        {member.unit: member.id, "patient": member.patient}
        | ({"label": member.label} if member.label else {})
        | {"split": assigned[member.patient]}
        for member in members
        if assigned[member.patient] in splits
    ]


def checksum_of(rows: Iterable[Mapping[str, str]]) -> str:
    """Return the SHA-256 of rows; it does not depend on their order."""
    text = json.dumps(sorted(list(row.values()) for row in rows), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def prove_splits(
    members: Sequence[Member],
    splits: Mapping[str, str],
    settings: SplitSettings,
    sheet_sha256: str = "",
) -> SplitProof:
    """Count patients and members per split and label, and list the patients in two splits."""
    labels, unit = classes_of(members), members[0].unit
    in_split = {split: [m for m in members if splits[m.patient] == split] for split in SPLITS}
    patients_in = {split: {m.patient for m in rows} for split, rows in in_split.items()}
    with_label = {label: {m.patient for m in members if stratum_of(m) == label} for label in labels}
    patients = {member.patient for member in members}
    counts = {}
    for split in SPLITS:
        by_label = {}
        for label in labels:
            labelled = [m for m in in_split[split] if stratum_of(m) == label]
            labelled_patients = {m.patient for m in labelled}
            by_label[label] = LabelCounts(
                patients=len(labelled_patients),
                unit=unit,
                members=len(labelled),
                share=round(len(labelled_patients) / len(with_label[label]), 4),
                wanted=round(settings.shares[split], 4),
            )
        counts[split] = SplitCounts(
            patients=len(patients_in[split]),
            unit=unit,
            members=len(in_split[split]),
            share=round(len(patients_in[split]) / len(patients), 4),
            by_label=by_label,
        )
    return SplitProof(
        seed=settings.seed,
        by=settings.by,
        folds=settings.folds,
        fold=settings.fold,
        held_out=settings.held_out,
        shares=settings.shares,
        labels=labels,
        splits=counts,
        shared_patients={
            f"{first}&{second}": sorted(patients_in[first] & patients_in[second])
            for first, second in combinations(SPLITS, 2)
        },
        sheet_sha256=sheet_sha256,
    )


def check_labels(
    members: Sequence[Member],
    splits: Mapping[str, str],
    sheet: Path,
    settings: SplitSettings | None = None,
) -> None:
    """Refuse splits of which one lacks a label (of cases: a patient).

    Args:
        members: the rows of the sheet.
        splits: the split of each patient.
        sheet: the sheet, for the message.
        settings: to look for a seed that can be used and name it in the message; None: don't look.

    Raises:
        UserError: names every missing label and its split, and says what to change.
    """
    faults = []
    classes = classes_of(members)
    if PLACEHOLDER in classes:
        count = sum(member.label == PLACEHOLDER for member in members)
        raise UserError(
            f"{sheet}: {count} {members[0].unit}(s) have the label {PLACEHOLDER}, which `gigatile "
            "init` writes if it does not know the class; replace it in the column `label`"
        )
    for label in classes or [""]:
        of_label = [member for member in members if stratum_of(member) == label]
        if not any(map(is_required, of_label)):
            continue
        patients = {member.patient for member in of_label}
        sites = {member.site for member in of_label}
        only = f", all at site {min(sites)!r}" if len(sites) == 1 and "" not in sites else ""
        for split in SPLITS:
            if not any(splits[patient] == split for patient in patients):
                faults.append(
                    f"no patient with label {label!r} in {split} (the sheet has {len(patients)} "
                    f"patient(s) with that label{only})"
                    if label
                    else f"no patient in {split} (the sheet has {len(patients)})"
                )
    if len(classes) == 1 and not any(map(has_outcome, members)):
        faults.append(f"only one label, {classes[0]!r}; a classifier needs two")
    if faults:
        # The advice is in the heading, since the end of a long list is left out.
        needs = "every label" if classes else "a patient"
        advice = "fix splits in the sheet's column `split`, or add patients"
        if settings is not None and len(classes) != 1:
            seed = usable_seed(members, settings)
            if seed is None:
                advice += "; no seed that was tried can be used"
            else:
                advice = f"set `split: {{seed: {seed}}}`, {advice}"
        raise all_faults(
            f"{sheet}: the splits cannot be used. To have {needs} in each split, {advice}", faults
        )


def imbalance(
    members: Sequence[Member], splits: Mapping[str, str], settings: SplitSettings
) -> float:
    """Return the largest difference, over splits and labels, of a share from the wanted one.

    Infinite if a split lacks a label, or has no patient.
    """
    worst = 0.0
    for split, counts in prove_splits(members, splits, settings).splits.items():
        for part in counts.by_label.values() or [counts]:
            if not part.patients:
                return float("inf")
            assert part.share is not None
            worst = max(worst, abs(part.share - settings.shares[split]))
    return worst


def best_seed(
    members: Sequence[Member], settings: SplitSettings, tries: int
) -> list[tuple[float, int]]:
    """Try the seeds 0 … tries-1; return (imbalance, seed), best first, ties by the smaller seed.

    Choosing a seed by balance does not bias results: it looks at the sheet only.
    """
    ranked = []
    for seed in range(tries):
        candidate = settings.model_copy(update={"seed": seed})
        ranked.append((imbalance(members, assign(members, candidate), candidate), seed))
    return sorted(ranked)


def usable_seed(
    members: Sequence[Member], settings: SplitSettings, tries: int = SEEDS_TRIED
) -> int | None:
    """Return the seed with the best balance, if it gives every split each label (or a patient).

    Args:
        members: the rows of the sheet.
        settings: the shares.
        tries: how many seeds to try; of a large sheet, fewer are tried.

    Returns:
        None: no seed that was tried can be used.
    """
    patients: dict[str, set[str]] = {}
    for member in members:
        patients.setdefault(stratum_of(member), set()).add(member.patient)
    if min(map(len, patients.values()), default=0) < len(SPLITS):
        return None
    tries = max(1, min(tries, tries * _MANY_ROWS // len(members)))
    imbalance_of_best, seed = best_seed(members, settings, tries)[0]
    return None if imbalance_of_best == float("inf") else seed
