"""The references of new data, checked against the model: of a run, or in a bundle."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gigatile.bundle.contents import CALIBRATION, METRICS, OPERATING_POINTS, open_bundle
from gigatile.cohort.new_labels import are_labelled, check_new_labels, check_new_references
from gigatile.cohort.sheet import Member
from gigatile.cohort.splits import classes_of
from gigatile.errors import UserError
from gigatile.settings.whole import Settings
from gigatile.tasks import find_task


def is_external(settings: Settings, new: Iterable[Member]) -> bool:
    """Return whether new data are evaluated: they have labels or references."""
    column = find_task(settings.task).truth
    return bool(column) and are_labelled(new, column)


def check_external(
    settings: Settings,
    cohort: Sequence[Member],
    new: Sequence[Member],
    may_be_missing: Callable[[Path], bool] = lambda path: False,
) -> None:
    """Check the labels or references of new data, if they have any.

    Args:
        settings: of the run.
        cohort: rows of the sheet of the cohort; none with a bundle.
        new: rows of the sheet of new data.
        may_be_missing: returns whether a missing file with a reference is no fault.

    Raises:
        UserError: lists all faults of the labels or references; or the bundle does not have the
            figures that those of the new data are compared with.
    """
    if not is_external(settings, new):
        return
    task = find_task(settings.task)
    classes = classes_of(cohort)
    if settings.predict.bundle:
        bundle = open_bundle(Path(settings.predict.bundle), check=False)
        classes = bundle.manifest.classes
        of_slides = (CALIBRATION, OPERATING_POINTS) if task.classifies_slides else ()
        for name in (METRICS, *of_slides):
            if not (bundle.folder / name).is_file():
                raise UserError(
                    f"{bundle.folder}: has no {name}, with which {task.unit}s with a {task.truth} "
                    "are compared; write the bundle again with gigatile bundle, or remove the "
                    f"column {task.truth}"
                )
    sheet = Path(str(settings.predict.samples))
    if task.classifies_slides:
        check_new_labels(new, sheet, classes)
    else:
        check_new_references(new, sheet, task.truth, may_be_missing)
