"""The labels of new slides, checked against the classes of the model: of a run, or in a bundle."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from gigatile.bundle.contents import CALIBRATION, METRICS, OPERATING_POINTS, open_bundle
from gigatile.cohort.new_labels import are_labelled, check_new_labels
from gigatile.cohort.sheet import Member
from gigatile.cohort.splits import classes_of
from gigatile.errors import UserError
from gigatile.settings.whole import Settings
from gigatile.tasks import find_task


def is_external(settings: Settings, new: Iterable[Member]) -> bool:
    """Return whether new data are evaluated: they have labels, and the task supports it."""
    return find_task(settings.task).validates_externally and are_labelled(new)


def check_external(settings: Settings, cohort: Sequence[Member], new: Sequence[Member]) -> None:
    """Check the labels of new slides, if they have any.

    Args:
        settings: of the run.
        cohort: rows of the sheet of the cohort; none with a bundle.
        new: rows of the sheet of new data.

    Raises:
        UserError: lists all faults of the labels; or the bundle does not have the figures that
            those of the new slides are compared with.
    """
    if not is_external(settings, new):
        return
    classes = classes_of(cohort)
    if settings.predict.bundle:
        bundle = open_bundle(Path(settings.predict.bundle), check=False)
        classes = bundle.manifest.classes
        for name in (METRICS, CALIBRATION, OPERATING_POINTS):
            if not (bundle.folder / name).is_file():
                raise UserError(
                    f"{bundle.folder}: has no {name}, with which slides with labels are compared; "
                    "write the bundle again with gigatile bundle, or remove the column label"
                )
    check_new_labels(new, Path(str(settings.predict.samples)), classes)
