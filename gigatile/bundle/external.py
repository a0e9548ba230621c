"""The labels, outcomes or references of new data, checked against the model."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gigatile.bundle.contents import (
    CALIBRATION,
    METRICS,
    OPERATING_POINTS,
    Bundle,
    open_bundle,
)
from gigatile.cohort.new_labels import are_labelled, check_new_labels, check_new_references
from gigatile.cohort.new_outcomes import Kind, check_new_outcomes, kind_of
from gigatile.cohort.sheet import Member
from gigatile.cohort.splits import classes_of
from gigatile.errors import UserError
from gigatile.json_models import JsonModel, read_model
from gigatile.settings.whole import Settings
from gigatile.tasks import find_task
from gigatile.tasks.task import Task


def is_external(settings: Settings, new: Iterable[Member]) -> bool:
    """Return whether new data are evaluated: they have labels, outcomes or references."""
    return are_labelled(new, find_task(settings.task).truth)


def check_external(
    settings: Settings,
    cohort: Sequence[Member],
    new: Sequence[Member],
    may_be_missing: Callable[[Path], bool] = lambda path: False,
) -> None:
    """Check the labels, outcomes or references of new data, if they have any.

    Args:
        settings: of the run.
        cohort: rows of the sheet of the cohort; none with a bundle.
        new: rows of the sheet of new data.
        may_be_missing: returns whether a missing file with a reference is no fault.

    Raises:
        UserError: lists all their faults; or the bundle does not have the
            figures that those of the new data are compared with.
    """
    if not is_external(settings, new):
        return
    task, sheet = find_task(settings.task), Path(str(settings.predict.samples))
    bundle = (
        _bundle_with_figures(task, settings.predict.bundle) if settings.predict.bundle else None
    )
    if task.classifies_slides:
        check_new_labels(new, sheet, bundle.manifest.classes if bundle else classes_of(cohort))
    elif task.predicts_outcomes:
        check_new_outcomes(new, sheet, _kind_in(bundle) if bundle else kind_of(cohort))
    else:
        check_new_references(new, sheet, task.truth[0], may_be_missing)


def _bundle_with_figures(task: Task, folder: str) -> Bundle:
    """Open a bundle; it must have the figures that those of new data are compared with."""
    bundle = open_bundle(Path(folder), check=False)
    of_slides = (CALIBRATION, OPERATING_POINTS) if task.classifies_slides else ()
    for name in (METRICS, *of_slides):
        if not (bundle.folder / name).is_file():
            columns = ", ".join(task.truth)
            raise UserError(
                f"{bundle.folder}: has no {name}, with which {task.unit}s with {columns} are "
                "compared; write the bundle again with gigatile bundle, or remove what the sheet "
                f"has of: {columns}"
            )
    return bundle


class _Outcomes(JsonModel):
    kind: Kind


def _kind_in(bundle: Bundle) -> Kind:
    return read_model(_Outcomes, bundle.folder / METRICS).kind
