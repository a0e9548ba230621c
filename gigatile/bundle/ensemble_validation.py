"""External validation of an ensemble: its mean predictions of new slides with labels or outcomes.

They are compared with the figures of all folds together, in which each patient was tested by the
model of one fold (or patients that were held out, by the mean of all models).
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from gigatile.bundle.contents import CALIBRATION, METRICS
from gigatile.bundle.ensembles import Ensemble
from gigatile.errors import UserError
from gigatile.evaluation.calibration_file import OperatingPoints
from gigatile.evaluation.external import write_external
from gigatile.evaluation.external_file import ExternalFile
from gigatile.evaluation.external_outcomes import write_external_outcomes
from gigatile.evaluation.external_slides import ExternalFiles
from gigatile.json_models import read_model, write_model
from gigatile.report.external import Predictor
from gigatile.report.known_samples import COLUMNS as COMPARED
from gigatile.report.outcomes.external import write_external_page as write_page_of_outcomes
from gigatile.report.pooled_predictions import MATCHES, NEW_TABLE, PREDICTED
from gigatile.report.slides.external import write_external_page
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.tables import read_table, write_table
from gigatile.tasks import find_task

EXTERNAL = "predictions/external"
MEASURED, POINTS, PAGE = "metrics.json", "operating_points.json", "index.html"


def check_figures(ensemble: Ensemble) -> None:
    """Check that an ensemble has the figures that new slides are compared with.

    Raises:
        UserError: it was written by a release that did not copy them.
    """
    classifies = find_task(ensemble.bundles[0].manifest.task).classifies_slides
    if classifies and not (ensemble.folder / CALIBRATION).is_file():
        raise UserError(
            f"{ensemble.folder}: has no {CALIBRATION}, so new slides with labels cannot be "
            "evaluated; write the ensemble again with: gigatile pool RUN… --ensemble DIR"
        )


def validate_ensemble(
    ensemble: Ensemble,
    results: Path,
    runs: Sequence[Path],
    sheet: Path,
    settings: EvaluationSettings,
) -> Path:
    """Evaluate the mean predictions, and write the page.

    Args:
        ensemble: the ensemble; see `check_figures`.
        results: the folder with its mean predictions, without an earlier evaluation.
        runs: the results of each model, which was evaluated alone, in the order of the bundles.
        sheet: of the new slides.
        settings: number of draws for the intervals, and their seed.

    Returns:
        The page.

    Raises:
        UserError: a file is missing or damaged.
    """
    out = results / EXTERNAL
    files = _files_of(results, runs, sheet)
    # Each run states whether it could compare the new slides with the cohort.
    compared = all(read_model(ExternalFile, run / EXTERNAL / MEASURED).compared for run in runs)
    first = ensemble.bundles[0].manifest
    pages = f"../../../{first.name}/predictions/pages"
    predictor = Predictor(pages, first.name, len(runs))
    metrics, title = ensemble.folder / METRICS, f"External validation: {ensemble.name}"
    out.mkdir(parents=True)
    measured, page = out / MEASURED, out / PAGE
    if find_task(first.task).classifies_slides:
        calibration, points = ensemble.folder / CALIBRATION, out / POINTS
        # A threshold that was chosen for one model is not one of the mean.
        write_model(points, OperatingPoints.none(first.classes))
        write_external(
            files, metrics, calibration, points, settings, compared=compared, out=measured
        )
        write_external_page(measured, metrics, calibration, points, title, page, predictor)
    else:
        table = write_external_outcomes(
            files, metrics, None, settings, compared=compared, out=measured
        )
        write_page_of_outcomes(measured, table, metrics, title, page, predictor)
    return page


def _files_of(results: Path, runs: Sequence[Path], sheet: Path) -> ExternalFiles:
    """Write the tables that the runs have in common, next to the mean predictions."""
    shutil.copy(runs[0] / NEW_TABLE, results / NEW_TABLE)
    # A slide that is in the cohort of one model does not count.
    columns = ("slide", *COMPARED)
    matches = {
        tuple(row[name] for name in columns): None
        for run in runs
        for row in read_table(run / MATCHES, columns)
    }
    write_table(results / MATCHES, columns, list(matches))
    return ExternalFiles(results / PREDICTED, results / NEW_TABLE, sheet, results / MATCHES)
