"""Check a run before any job: its settings, sample sheets, splits, and the header of every file.

The exit status is 1 if the run could not start or would have to stop, and 0 otherwise, even if some
slides or cases would be left out. Only headers are read: a job may still find a damaged region.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from gigatile.bundle.external import check_external
from gigatile.cohort.collect import missing_labels
from gigatile.cohort.copies import check_copies, copies_in_cohort
from gigatile.cohort.images import Image, with_scale_of_images
from gigatile.cohort.samples import Sample, read_samples
from gigatile.cohort.sheet import Member, is_required, stratum_of
from gigatile.cohort.sheet_conflicts import check_columns, sheet_warnings
from gigatile.cohort.splits import assign, check_labels, classes_of
from gigatile.command.configuration import (
    find_configuration,
    folder_of_paths,
    load,
    project_folder,
    with_paths_from,
)
from gigatile.errors import UserError
from gigatile.settings.initial_weights import weights_file
from gigatile.settings.split import SPLITS
from gigatile.settings.whole import Settings
from gigatile.stores.addresses import is_remote
from gigatile.tasks import find_task

_LISTED = 50  # slides or cases that would be left out
_PROGRESS_FROM = 200  # members


class _Checked(NamedTuple):
    """A sheet that was checked: its rows, and why a row would be left out, by id."""

    members: Sequence[Member]
    left_out: dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "target",
        type=Path,
        nargs="?",
        metavar="DIR|FILE",
        help="a configuration, or the folder of config.yaml (the current folder). Paths in a "
        "configuration are relative to its folder",
    )
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        default=min(8, len(os.sched_getaffinity(0))),
        help="files that are opened at once (%(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    """Print a summary, warnings and errors; exit with status 1 if the run could not start."""
    if args.threads < 1:
        raise UserError(f"--threads {args.threads}: must be at least 1")
    errors = check(find_configuration(args.target), args.threads)
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    if errors:
        print("The run cannot start. Correct the errors and check again.", file=sys.stderr)
        sys.exit(1)
    print("The run can start.")


def check(path: Path, threads: int) -> list[str]:
    """Print the summary and the warnings of a configuration; return the errors."""
    try:
        settings = with_paths_from(load(path), folder_of_paths(path))
    except UserError as error:
        return [str(error)]
    print(f"{path}: run {settings.run}, task {settings.task}")
    cohort: Sequence[Member] = []
    new: Sequence[Member] = []
    errors: list[str] = []
    if not settings.predict.bundle:  # with one, there is no cohort
        cohort, errors = _read_sheet(settings, settings.samples, labelled=True)
    if settings.predict.samples:
        new, more = _read_sheet(settings, settings.predict.samples, labelled=False)
        errors += more
    if new:
        try:
            check_external(settings, cohort, new)
        except UserError as error:
            errors.append(str(error))
    slides: Sequence[Sample] = []
    if settings.predict.slides:
        try:
            slides = read_samples(Path(settings.predict.slides), False)
        except UserError as error:
            errors.append(str(error))
    weights = weights_file(settings.train.weights)
    if weights and not weights.is_file():
        errors.append(f"train.weights: no such file: {weights}")
    if cohort:
        errors += _check_cohort(settings, cohort, new)
    if find_task(settings.task).detects_on_slides and not settings.predict.bundle:
        settings = with_scale_of_images(settings, [row for row in cohort if isinstance(row, Image)])
    checked = [
        _Checked(rows, _check_files(rows, settings, threads)) for rows in (cohort, new, slides)
    ]
    if cohort:
        _print_counts(settings, checked[0])
    if new:
        print(f"new: {_count(len(new), new[0])}")
    if slides:
        print(f"whole slides: {len(slides):,}")
    errors += _unusable(settings, *checked)
    return errors


def _read_sheet(
    settings: Settings, sheet: str, labelled: bool
) -> tuple[Sequence[Member], list[str]]:
    """Return the rows of a sheet and no error, or no rows and an error; print warnings."""
    try:
        read = find_task(settings.task).read_sheet
        members = read(Path(sheet), settings, labelled, is_made_by_the_demo, True)
    except UserError as error:
        return [], [str(error)]
    _print_warnings(f"{sheet}: {warning}" for warning in sheet_warnings(members))
    return members, []


def is_made_by_the_demo(path: Path) -> bool:
    """Return whether the workflow makes a file: a slide, volume or image of the demo."""
    demo = project_folder() / "demo"
    made = (demo / "slides", demo / "images")
    return path.parent in made or path.parent.parent == demo / "volumes"


def _check_cohort(settings: Settings, cohort: Sequence[Member], new: Sequence[Member]) -> list[str]:
    """Return errors of the splits, and of files that two patients share; print warnings."""
    sheet, errors = Path(settings.samples), []
    try:
        check_columns(cohort, settings.report.group_by, settings.samples)
    except UserError as error:
        errors.append(str(error))
    try:
        check_labels(cohort, assign(cohort, settings.split), sheet, settings.split)
    except UserError as error:
        errors.append(str(error))
    try:
        _print_warnings(check_copies(cohort, sheet))
        if new:
            _print_warnings(copies_in_cohort(new, cohort, Path(str(settings.predict.samples))))
    except UserError as error:
        errors.append(str(error))
    labels = classes_of(cohort)
    return [*errors, *settings.train.unknown_labels(labels)]


def _check_files(members: Sequence[Member], settings: Settings, threads: int) -> dict[str, str]:
    """Return why slides or cases would be left out, by id; print the reasons as warnings."""
    made = [m for m in members if any(is_made_by_the_demo(f) and not f.exists() for f in m.files)]
    if made:
        print(f"{_count(len(made), made[0])} of the demo are not made yet; the workflow makes them")
    # Their sizes were asked for; to open one, some formats would be fetched whole.
    in_stores = [member for member in members if any(map(is_remote, member.files))]
    if in_stores:
        print(f"{_count(len(in_stores), in_stores[0])} in a store: their headers are not checked")
    skipped = {member.id for member in (*made, *in_stores)}
    rest = [member for member in members if member.id not in skipped]
    # The readers of slides and volumes: half a second that no other subcommand needs.
    from gigatile.command.headers import check_headers

    faults = check_headers(rest, settings, threads, lambda count: _report(count, len(rest)))
    left_out = [(m, fault) for m, fault in zip(rest, faults, strict=True) if fault]
    if left_out:
        count = _count(len(left_out), left_out[0][0])
        print(f"warning: {count} of {len(members)} would be left out:", file=sys.stderr)
        for member, fault in left_out[:_LISTED]:
            print(f"  - row {member.row}, {member.id}: {fault}", file=sys.stderr)
        if len(left_out) > _LISTED:
            print(f"  … and {len(left_out) - _LISTED} more", file=sys.stderr)
    return {member.id: fault for member, fault in left_out}


def _unusable(settings: Settings, cohort: _Checked, new: _Checked, slides: _Checked) -> list[str]:
    """Return errors of slides or cases that would be left out, if the run would then stop."""
    errors = []
    section = find_task(settings.task).preparation
    count = len(cohort.left_out) + len(new.left_out) + len(slides.left_out)
    if count and getattr(settings, section).on_error == "stop":
        errors.append(f"{section}.on_error is `stop`, and {count} row(s) cannot be used: see above")
    if cohort.left_out:
        splits = assign(cohort.members, settings.split)
        rows = [
            {
                **{
                    member.unit: member.id,
                    "label": stratum_of(member),
                    "split": splits[member.patient],
                },
                "state": "failed" if member.id in cohort.left_out else "",
                "reason": cohort.left_out.get(member.id, ""),
            }
            for member in cohort.members
            if is_required(member)
        ]
        present = {(row["label"], row["split"]) for row in rows}
        faults = [
            fault
            for label, split in sorted(present)
            for fault in missing_labels([r for r in rows if r["label"] == label], (split,))
        ]
        if faults:
            listed = "\n".join(f"  - {fault}" for fault in faults)
            errors.append(f"{settings.samples}: too few files can be used\n{listed}")
    if new.members and len(new.left_out) == len(new.members):
        errors.append(f"{settings.predict.samples}: no {new.members[0].unit} can be used")
    return errors


def _print_counts(settings: Settings, cohort: _Checked) -> None:
    """Print the patients and the usable slides or cases of each label and split."""
    members, left_out = cohort
    patients = {member.patient for member in members}
    split = settings.split
    by = "" if split.by == "patient" else f" by {split.by}"
    role = "validation" if split.held_out else "test"
    fold = f", fold {split.fold} of {split.folds} is the {role} split" if split.folds else ""
    print(
        f"{settings.samples}: {_count(len(members), members[0])} of {len(patients)} patient(s), "
        f"split{by} with seed {split.seed}{fold}"
    )
    splits = assign(members, settings.split)
    counts = Counter((stratum_of(m), splits[m.patient]) for m in members if m.id not in left_out)
    people = Counter(
        (label, splits[p]) for label, p in {(stratum_of(m), m.patient) for m in members}
    )
    labels = classes_of(members) or [""]
    width = max(len("label"), *map(len, labels))
    heading = "label" if labels != [""] else ""
    print("  ".join([f"{heading:{width}}", *(f"{split:>24}" for split in SPLITS)]).rstrip())
    for label in labels:
        cells = (
            f"{_count(counts[label, split], members[0])}, {people[label, split]} patient(s)"
            for split in SPLITS
        )
        print("  ".join([f"{label:{width}}", *(f"{cell:>24}" for cell in cells)]))


def _count(number: int, member: Member) -> str:
    return f"{number} {member.unit}{'' if number == 1 else 's'}"


def _report(count: int, total: int) -> None:
    if total >= _PROGRESS_FROM and sys.stderr.isatty():
        end = "\n" if count == total else ""
        print(f"\ropened {count:,} of {total:,}", end=end, file=sys.stderr, flush=True)


def _print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
