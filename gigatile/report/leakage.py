"""What must hold between splits, of slides as of cases: counted anew, and never taken on trust."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

from gigatile.cohort.names import same_names
from gigatile.report.inputs import Splits
from gigatile.settings.split import SPLITS


class Member(Protocol):
    """A slide or a case of the cohort."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def patient(self) -> str:
        """Whose it is."""

    @property
    def split(self) -> str:
        """Where it stands."""


@dataclass(frozen=True)
class Check:
    """One thing that must hold between splits; `shared` lists what breaks it."""

    claim: str
    shared: list[str]
    counted: str


def patient_checks(splits: Splits, cohort: Sequence[Member]) -> list[Check]:
    """Check that no patient stands in two splits, nor one whose id is spelled in two ways."""
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


def file_check(claim: str, files: Sequence[tuple[str, str, str]]) -> Check:
    """Check that no file stands in two splits under two names.

    Args:
        claim: what is said of it.
        files: the split, fingerprint and name of each.
    """
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for split, fingerprint, name in files:
        found[fingerprint].append((split, name))
    return Check(
        claim,
        [
            " = ".join(name for _, name in same)
            for same in found.values()
            if len({split for split, _ in same}) > 1
        ],
        f"{len(found)} fingerprints of {len(files)} files",
    )


def strangers(
    cohort: Sequence[Member], scored: Mapping[str, Mapping[str, str | None]]
) -> list[str]:
    """Return which of those scored are none of the cohort's test members, or not as told there.

    Args:
        cohort: all members.
        scored: for each id, attributes of the member by name, as the evaluation tells them.
    """
    known = {one.id: one for one in cohort}
    found = []
    for name, told in scored.items():
        row = known.get(name)
        if row is None:
            found.append(f"{name} is not in the cohort")
        elif row.split != "test":
            found.append(f"{name} is in {row.split}")
        elif any(getattr(row, attribute) != value for attribute, value in told.items()):
            found.append(f"{name} has another {' or '.join(told)} in the cohort")
    return found


def miscounted(splits: Splits, cohort: Sequence[Member], units: str) -> list[str]:
    """Return where splits.json counts other patients, or `units`, than stand in the cohort."""
    found = []
    for name, stated in splits.splits.items():
        mine = [s for s in cohort if s.split == name]
        counted = (len({s.patient for s in mine}), len(mine))
        if counted != (stated.patients, stated.members):
            found.append(
                f"{name}: {stated.patients} patients and {stated.members} {units} stated, "
                f"{counted[0]} and {counted[1]} counted"
            )
    return found


def _patients(cohort: Sequence[Member], split: str) -> set[str]:
    return {one.patient for one in cohort if one.split == split}
