"""Outcomes of slides that are not classes: a number, or the time to an event.

In tables and records they are the label of a slide, as text: `12.5`, `12.5 event` or `12.5
censored`.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gigatile.cohort.samples import Sample, build_sample
from gigatile.cohort.sheet import CENSORED, EVENT, Row, SheetLayout
from gigatile.errors import UserError, all_faults

NUMBER_COLUMNS, SURVIVAL_COLUMNS = ("value",), ("time", "event")
OUTCOME_COLUMNS = (*NUMBER_COLUMNS, *SURVIVAL_COLUMNS)


@dataclass(frozen=True)
class Outcome:
    """What happened to the patient of a slide, or a number that belongs to the slide.

    Attributes:
        value: the number, or the time to the event or to the end of the observation.
        event: whether the event was observed; None: the outcome is a number.
    """

    value: float
    event: bool | None = None

    @property
    def stratum(self) -> str:
        """What the splits balance: whether the event was observed; nothing for a number."""
        if self.event is None:
            return ""
        return EVENT if self.event else CENSORED

    def __str__(self) -> str:
        return f"{self.value!r} {self.stratum}".rstrip()


def parse_outcome(label: str) -> Outcome:
    """Return the outcome that a label states.

    Raises:
        UserError: it states none.
    """
    number, _, stratum = label.partition(" ")
    events = {"": None, EVENT: True, CENSORED: False}
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or stratum not in events:
        raise UserError(
            f"label {label!r}: must be a number, or a time followed by {EVENT} or {CENSORED}"
        )
    return Outcome(value, events[stratum])


class OutcomeSheet(SheetLayout[Sample]):
    """A sheet of slides with the column `value`, or with `time` and `event`."""

    def required(self, header: Sequence[str], labelled: bool) -> list[str]:
        """Return the columns that a sheet must have."""
        survival = any(column in header for column in SURVIVAL_COLUMNS)
        outcome = SURVIVAL_COLUMNS if survival and "value" not in header else NUMBER_COLUMNS
        return [*super().required(header, labelled), *(outcome if labelled else ())]


def _build(row: Row) -> tuple[Sample, list[str]]:
    outcome, faults = _outcome_of(row)
    label, stratum = (str(outcome), outcome.stratum) if outcome else ("", "")
    sample, more = build_sample(row, label, stratum)
    return sample, faults + more


def _outcome_of(row: Row) -> tuple[Outcome | None, list[str]]:
    if not row.labelled:
        return None, []
    present = [name for name in OUTCOME_COLUMNS if name in row.cells]
    if "value" in present:
        if len(present) > 1:
            return None, ["the sheet has `value`, and `time` or `event`; must have one of both"]
        return read_number(row.cells)
    if len(present) < len(SURVIVAL_COLUMNS):
        return None, []  # the header was refused
    return read_time(row.cells)


def read_number(cells: Mapping[str, str]) -> tuple[Outcome | None, list[str]]:
    """Return the outcome in the column `value` of a row; or None, and the faults."""
    value = _number(cells["value"])
    if value is None:
        return None, [f"value {cells['value']!r}: must be a number"]
    return Outcome(value), []


def read_time(cells: Mapping[str, str]) -> tuple[Outcome | None, list[str]]:
    """Return the outcome in the columns `time` and `event` of a row; or None, and the faults."""
    time, event, faults = _number(cells["time"]), cells["event"], []
    if time is None or time <= 0:
        faults.append(f"time {cells['time']!r}: must be a number above 0")
    if event not in ("0", "1"):
        faults.append(f"event {event!r}: must be 1, or 0 if it was not observed until then")
    if faults or time is None:
        return None, faults
    return Outcome(time, event == "1"), []


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


OUTCOME_SHEET = OutcomeSheet(unit="slide", build=_build, files=("path",), files_in_stores=True)


def check_outcomes(sheet: Path, samples: Iterable[Sample]) -> None:
    """Refuse patients with two times or events, and sheets without any event or variation.

    Raises:
        UserError: lists all of them.
    """
    samples = [sample for sample in samples if sample.label]
    strata = {sample.stratum for sample in samples}
    faults = []
    if strata & {EVENT, CENSORED}:
        faults += several_outcomes((sample.patient, sample.label, sample.row) for sample in samples)
        if EVENT not in strata:
            faults.append("no row has event 1; without any event, no risk can be learned")
    elif samples and len({sample.label for sample in samples}) == 1:
        faults.append(f"all rows have the value {samples[0].label}; there is nothing to learn")
    if faults:
        raise all_faults(f"{sheet}: the outcomes cannot be used", faults)


def several_outcomes(rows: Iterable[tuple[str, str, int]]) -> list[str]:
    """Return a fault for each patient with more than one time or event.

    Args:
        rows: patient, outcome as text, and line number of each row of a sheet.
    """
    by_patient: dict[str, dict[str, int]] = defaultdict(dict)
    for patient, outcome, number in rows:
        by_patient[patient].setdefault(outcome, number)
    faults = []
    for patient, outcomes in by_patient.items():
        if len(outcomes) > 1:
            where = ", ".join(f"{outcome} in row {row}" for outcome, row in outcomes.items())
            faults.append(f"patient {patient!r} has several outcomes: {where}")
    return faults
