"""The section that compares the metrics of sites, of scanners, and of other groups.

The rows of a group have the same value in a column of the sample sheet, or the same scanner. Its
metrics and intervals are those of the evaluation, computed from its test slides or cases alone.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gigatile.evaluation.metrics_file import Interval
from gigatile.report.inputs import CohortRow
from gigatile.report.pages import TEMPLATES
from gigatile.report.sites import NOT_GIVEN
from gigatile.report.task_report import Content, Run, Section

# At most so many groups of a column are shown: those with the most test patients.
SHOWN = 40
# The values of all rows, by id; empty: not given.
Values = Mapping[str, str]
# The scanner of a slide from its state; empty: not known.
ScannerOf = Callable[[Any], str]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A metric of a group.

    Attributes:
        why: the reason why it is not defined, if it is not.
        digits: decimals to show.
    """

    interval: Interval
    why: str = ""
    digits: int = 3


# From the run and the ids of test slides or cases: their metrics, by title.
FiguresOf = Callable[[Run, frozenset[str]], Mapping[str, Figure]]


@dataclass(frozen=True)
class Group:
    """The test slides or cases with one value.

    Attributes:
        rows: how many have scores.
        patients: how many these rows belong to.
        trained: number of train patients with this value.
    """

    value: str
    rows: int
    patients: int
    trained: int
    figures: Mapping[str, Figure]


@dataclass(frozen=True)
class Grouping:
    """The groups of a column; `more`: the number of groups that are not shown."""

    name: str
    groups: Sequence[Group]
    more: int


def groups_section(figures_of: FiguresOf, scanner_of: ScannerOf | None = None) -> Section:
    """Return the section. The report has it only if there are groups to compare.

    Args:
        figures_of: computes the metrics of a group.
        scanner_of: None: the task does not know scanners.
    """
    content = partial(_content, figures_of, scanner_of)
    return Section("groups", "Metrics by group", TEMPLATES / "groups.html.j2", content, "Groups")


def _content(figures_of: FiguresOf, scanner_of: ScannerOf | None, run: Run) -> Content | None:
    # The scanner of a slide that cannot be opened is not known.
    usable = [row.id for row in run.cohort if row.state != "failed"]
    groupings = [
        _grouping(run, figures_of, name, values)
        for name, values in _columns(run, scanner_of).items()
        if name in run.group_by or len({values[row] for row in usable}) > 1
    ]
    if not groupings or not groupings[0].groups:
        return None
    titles = list(groupings[0].groups[0].figures)
    return Content({"groupings": groupings, "unit": run.unit, "titles": titles})


def _columns(run: Run, scanner_of: ScannerOf | None) -> dict[str, Values]:
    """Return the values of each column: site, scanner, and the columns of the settings."""
    columns: dict[str, Values] = {"site": {row.id: row.site for row in run.cohort}}
    if scanner_of is not None:
        scanners = {name: scanner_of(state) for name, state in run.states.items()}
        columns["scanner"] = {row.id: scanners.get(row.id, "") for row in run.cohort}
    cells = {member.id: member.cells for member in run.sheet or ()}
    for name in run.group_by:
        columns[name] = {row.id: cells.get(row.id, {}).get(name, "") for row in run.cohort}
    return columns


def _grouping(run: Run, figures_of: FiguresOf, name: str, values: Values) -> Grouping:
    scored: dict[str, list[CohortRow]] = defaultdict(list)
    trained: dict[str, set[str]] = defaultdict(set)
    ids = {row.id for row in run.scored}
    for row in run.cohort:
        if row.id in ids:
            scored[values[row.id]].append(row)
        elif row.split == "train" and row.state != "failed":
            trained[values[row.id]].add(row.patient)
    groups = [
        Group(
            value or NOT_GIVEN,
            len(rows),
            len({row.patient for row in rows}),
            len(trained[value]),
            figures_of(run, frozenset(row.id for row in rows)),
        )
        for value, rows in _largest(scored)
    ]
    return Grouping(name, groups, len(scored) - len(groups))


def _largest(scored: Mapping[str, list[CohortRow]]) -> list[tuple[str, list[CohortRow]]]:
    """Return the groups with the most patients, sorted by value; the empty value is the last."""
    by_size = sorted(
        scored.items(), key=lambda item: (-len({row.patient for row in item[1]}), item[0])
    )
    return sorted(by_size[:SHOWN], key=lambda item: (not item[0], item[0]))
