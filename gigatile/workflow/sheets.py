"""The sample sheets of a run, read and checked when the workflow starts."""

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from gigatile.cohort.copies import check_copies, copies_in_cohort
from gigatile.cohort.samples import Sample, read_samples
from gigatile.cohort.sheet import Member
from gigatile.cohort.sheet_conflicts import check_columns, sheet_warnings
from gigatile.cohort.splits import assign, check_labels
from gigatile.settings.whole import Settings
from gigatile.tasks import find_task
from gigatile.workflow.invocation import Invocation


def read_sheet(
    invocation: Invocation,
    settings: Settings,
    sheet: str | None,
    may_be_missing: Callable[[Path], bool],
    labelled: bool = True,
) -> dict[str, Member]:
    """Return the rows of a sheet by id, none without a sheet; print warnings in the main process.

    Raises:
        UserError: lists all faults of the sheet.
    """
    if not sheet:
        return {}
    # Only the main process checks that all files exist: if each job did, 30,000 slides would cost
    # 1.9 billion calls of stat.
    look = invocation.is_main_process
    read = find_task(settings.task).read_sheet
    members = read(Path(sheet), settings, labelled, may_be_missing, look)
    if invocation.is_main_process:
        _print_warnings(f"{sheet}: {warning}" for warning in sheet_warnings(members))
    return {member.id: member for member in members}


def read_slides(
    invocation: Invocation, settings: Settings, may_be_missing: Callable[[Path], bool]
) -> dict[str, Sample]:
    """Return the rows of the sheet of whole slides by id, none without a sheet; print warnings.

    Raises:
        UserError: lists all faults of the sheet.
    """
    sheet = settings.predict.slides
    if not sheet:
        return {}
    look = invocation.is_main_process
    slides = read_samples(Path(sheet), False, may_be_missing, look)
    if look:
        _print_warnings(f"{sheet}: {warning}" for warning in sheet_warnings(slides))
    return {slide.id: slide for slide in slides}


def check_sheets(
    invocation: Invocation,
    settings: Settings,
    cohort: Mapping[str, Member],
    new: Mapping[str, Member],
    with_files: bool,
    slides: Mapping[str, Member] = MappingProxyType({}),
) -> None:
    """Check splits and files in the main process; print warnings about copies.

    Args:
        invocation: of this process.
        settings: of the run.
        cohort: rows of its sheet.
        new: rows of the sheet of new data.
        with_files: whether the files are on this machine.
        slides: rows of the sheet of whole slides, of which instances are detected.

    Raises:
        UserError: a split lacks a label, or two patients have the same file.
    """
    if not invocation.is_main_process:
        return
    if settings.predict.bundle:
        return  # there is no cohort
    members, sheet = list(cohort.values()), Path(settings.samples)
    check_columns(members, settings.report.group_by, settings.samples)
    check_labels(members, assign(members, settings.split), sheet, settings.split)
    if with_files:
        _print_warnings(check_copies(members, sheet))
        for rows, other in ((new, settings.predict.samples), (slides, settings.predict.slides)):
            if rows:
                new_sheet = Path(str(other))
                _print_warnings(copies_in_cohort(list(rows.values()), members, new_sheet))


def _print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr, flush=True)
