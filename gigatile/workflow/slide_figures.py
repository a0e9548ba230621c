"""Operating points and external validation, as the rules need them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gigatile.bundle.contents import CALIBRATION, METRICS, OPERATING_POINTS, open_bundle
from gigatile.cohort.new_labels import are_labelled, check_new_labels
from gigatile.cohort.sheet import Member
from gigatile.errors import UserError
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.whole import Settings
from gigatile.tasks import find_task
from gigatile.workflow.invocation import Invocation


def wanted_rates(settings: EvaluationSettings) -> str:
    """Return the wanted sensitivities and specificities, as options of the command."""
    options = []
    for name, rates in (
        ("--sensitivity", settings.sensitivities),
        ("--specificity", settings.specificities),
    ):
        if rates:
            options += [name, *map(repr, rates)]
    return " ".join(options)


def is_external_validation(
    invocation: Invocation,
    settings: Settings,
    cohort: Mapping[str, Member],
    new: Mapping[str, Member],
) -> bool:
    """Return whether the sheet of new slides has labels; check them in the main process.

    Args:
        invocation: of this process.
        settings: of the run.
        cohort: rows of the sheet of the cohort; none with a bundle.
        new: rows of the sheet of new data.

    Raises:
        UserError: lists all faults of the labels; or the bundle does not have the figures that
            those of the new slides are compared with.
    """
    if not find_task(settings.task).validates_externally or not are_labelled(new.values()):
        return False
    if invocation.is_main_process:
        classes = _classes(settings, cohort)
        check_new_labels(list(new.values()), Path(str(settings.predict.samples)), classes)
    return True


def _classes(settings: Settings, cohort: Mapping[str, Member]) -> Sequence[str]:
    if not settings.predict.bundle:
        return sorted({row.label for row in cohort.values()})
    bundle = open_bundle(Path(settings.predict.bundle), check=False)
    for name in (METRICS, CALIBRATION, OPERATING_POINTS):
        if not (bundle.folder / name).is_file():
            raise UserError(
                f"{bundle.folder}: has no {name}, with which slides with labels are compared; "
                "write the bundle again with: gigatile bundle, or remove the column label"
            )
    return bundle.manifest.classes
