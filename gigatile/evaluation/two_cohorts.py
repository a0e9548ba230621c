"""A new cohort next to the test split: differences, sites, and what does not count."""

import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from gigatile.cohort.sheet import Member
from gigatile.errors import UserError
from gigatile.evaluation.external_file import Difference
from gigatile.evaluation.intervals import rounded
from gigatile.evaluation.metrics_file import Interval
from gigatile.tables import read_table

# The figures of at most so many sites are computed: those with the most patients.
MOST_SITES = 40


def difference(new: Interval, old: Interval) -> Difference:
    """Return the difference of two figures of independent cohorts, with its 95 % interval.

    The interval is made from those of the two figures (MOVER; Zou and Donner 2008,
    https://doi.org/10.1002/sim.3095; for two shares it is that of Newcombe 1998,
    https://doi.org/10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I).
    """
    if new.value is None or old.value is None:
        return Difference(value=None, low=None, high=None)
    value = new.value - old.value
    if new.low is None or new.high is None or old.low is None or old.high is None:
        return Difference(value=rounded(value), low=None, high=None)
    low = value - math.hypot(new.value - new.low, old.high - old.value)
    high = value + math.hypot(new.high - new.value, old.value - old.low)
    return Difference(value=rounded(value), low=rounded(low), high=rounded(high))


def rows_by_site(
    table: pd.DataFrame, unit: str, sites: Mapping[str, str]
) -> dict[str, pd.DataFrame]:
    """Return the rows of each site, in alphabetical order; last those without a site.

    Empty if there are fewer than two sites; of more than `MOST_SITES`, those with the most
    patients.

    Args:
        table: rows with the columns `unit` and `patient`.
        unit: the column of ids, for example `slide`.
        sites: the site of each id; empty: not given.
    """
    of_row = table[unit].map(sites).fillna("")
    patients = table.groupby(of_row.to_numpy())["patient"].nunique()
    if len(patients) < 2:
        return {}
    largest = sorted(patients.index, key=lambda name: (-patients[name], name))[:MOST_SITES]
    names = sorted(largest, key=lambda name: (not name, name))
    return {name: table[(of_row == name).to_numpy(bool)] for name in names}


def reasons_of_failures(
    members: Mapping[str, Member], table: Path, sheet: Path, unit: str
) -> dict[str, str]:
    """Return why new cases or images could not be prepared, by id.

    Args:
        members: the rows of the sheet by id.
        table: of the states of the new data.
        sheet: the file of `members`.
        unit: the column of ids of the table.

    Raises:
        UserError: the table is missing or damaged, or has other rows than the sheet.
    """
    rows = {row[unit]: row for row in read_table(table, (unit, "state", "reason"))}
    if rows.keys() != members.keys():
        other = sorted(rows.keys() ^ members.keys())[0]
        raise UserError(
            f"{table}: {unit} {other!r} is in only one of this table and {sheet}; run the "
            "prediction again"
        )
    return {
        name: row["reason"] or "could not be prepared"
        for name, row in rows.items()
        if row["state"] == "failed"
    }


def reasons_in_cohort(members: Mapping[str, Member], matches: Path, unit: str) -> dict[str, str]:
    """Return why new slides or cases must not count: they are in the cohort of the model.

    The model was trained and chosen on these, and on others of their patients, so its figures would
    be too good.

    Args:
        members: the rows of the sheet by id.
        matches: in_cohort.tsv.
        unit: its column of ids.

    Raises:
        UserError: the table is missing or damaged.
    """
    reasons: dict[str, str] = {}
    for match in read_table(matches, (unit, "same")):
        reasons.setdefault(match[unit], f"in the cohort: same {match['same']}")
    # The cohort may be known by its pixels alone, as with a bundle: then another slide of the same
    # patient has no match.
    patients = {members[name].patient: name for name in reasons if name in members}
    for name, member in members.items():
        if name not in reasons and (other := patients.get(member.patient)):
            reasons[name] = f"in the cohort: its patient, by {unit} {other}"
    return reasons
