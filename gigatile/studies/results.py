"""The results of a study: its variants on the validation splits, the choice, and the tests."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.evaluation.compared_runs import RunsCompared, compare_runs
from gigatile.evaluation.metrics import evaluate_level
from gigatile.evaluation.metrics_file import Interval
from gigatile.evaluation.slide_table import classes_of, read_slide_table
from gigatile.evaluation.tested_outcomes import TestedOutcomes, read_tested_outcomes
from gigatile.evaluation.tested_runs import (
    METRICS,
    SLIDES,
    TestedRun,
    predicts_outcomes,
    read_tested,
)
from gigatile.files import read_json, sha256_of
from gigatile.json_models import Written, read_model
from gigatile.model_files import DESCRIBED
from gigatile.report.inputs import TrainedModel
from gigatile.report.pooled_folds import FOLDS, FoldsProof, pool_folds
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.studies.description import VALIDATED, Study, StudyRun, seeds_of, tested_name

# The figure of classifiers of slides.
AREA = "ROC AUC by slide"


class ValidatedRun(Written):
    """A run on its validation split.

    Attributes:
        value: of the study's criterion.
        epoch: of the model.
    """

    run: str
    seed: int | None
    fold: int | None
    value: float
    epoch: int


class ValidatedVariant(Written):
    """A variant on the validation splits.

    Attributes:
        settings: that differ from the configuration, by key.
        mean: of the runs' values.
        deviation: standard deviation of the runs' values; None: of a single run.
    """

    name: str
    settings: dict[str, Any]
    runs: list[ValidatedRun]
    mean: float
    deviation: float | None


class TestedVariant(Written):
    """The test results of a variant with one seed.

    Attributes:
        name: of the variant, with the seed if there are several.
        folder: of its results, in the folder of the study or of the run.
        patients, slides: that were tested.
        by: what gave the scores: `one model`; `the folds' models`: a patient is tested by the
            model of one fold; `mean`: of the folds' models.
        figures: by name; of classes, by slide.
        claims: what was proved of the folds, with what was counted.
        doubts: what was not.
    """

    name: str
    folder: str
    patients: int
    slides: int
    by: str
    figures: dict[str, Interval]
    claims: dict[str, str]
    doubts: list[str]


class StudyResults(Written):
    """The content of study.json.

    Attributes:
        criterion: the figure of the validation splits by which a variant is chosen.
        lowest: whether the lowest value is the best, not the highest.
        variants: the best one first.
        chosen: the best variant.
        test: `chosen`: only the best variant was tested; `all`.
        tested: in the order of `variants`; empty if the test results of runs of this task cannot be
            pooled or compared.
        reports: pages of the tested runs, relative to the folder of the study, by run.
        doubts: about the choice.
        inputs: SHA-256 of the files, by their path in results/.
    """

    study: str
    criterion: str
    lowest: bool
    variants: list[ValidatedVariant]
    chosen: str
    test: str
    tested: list[TestedVariant]
    reports: dict[str, str]
    doubts: list[str]
    inputs: dict[str, str]


@dataclass(frozen=True)
class Validation:
    """The variants on the validation splits, the best one first."""

    criterion: str
    lowest: bool
    variants: Sequence[ValidatedVariant]
    inputs: Mapping[str, str]


def validated(
    results: Path, runs: Sequence[StudyRun], settings: Mapping[str, dict[str, Any]]
) -> Validation:
    """Return the variants on the validation splits, the best one first; of equal ones, the first.

    Args:
        results: the folder results/.
        runs: of the study; each has a model and, if it classifies slides, scores of the split.
        settings: that differ, by variant.

    Raises:
        UserError: a run has no result, or the runs have different criteria.
    """
    figures: dict[str, ValidatedRun] = {}
    inputs: dict[str, str] = {}
    criteria: dict[tuple[str, bool], str] = {}
    for run in runs:
        name, lowest, figure, sums = _figure(results, run)
        criteria.setdefault((name, lowest), run.name)
        figures[run.name] = figure
        inputs |= sums
    if len(criteria) > 1:
        named = ", ".join(f"{run}: {name}" for (name, _), run in criteria.items())
        raise UserError(f"the runs chose their models by different figures ({named})")
    ((criterion, lowest),) = criteria
    variants = []
    for name, changes in settings.items():
        of_variant = [figures[run.name] for run in runs if run.variant == name]
        values = [figure.value for figure in of_variant]
        variants.append(
            ValidatedVariant(
                name=name,
                settings=changes,
                runs=of_variant,
                mean=statistics.fmean(values),
                deviation=statistics.stdev(values) if len(values) > 1 else None,
            )
        )
    variants.sort(key=lambda variant: variant.mean if lowest else -variant.mean)
    return Validation(criterion, lowest, variants, inputs)


def _figure(results: Path, run: StudyRun) -> tuple[str, bool, ValidatedRun, dict[str, str]]:
    """Return the criterion of a run, whether the lowest is the best, its value and its files."""
    folder = results / run.name
    described = folder / "model" / DESCRIBED
    model = read_model(TrainedModel, described)
    files = [described]
    # Predicted outcomes have no classes, and are judged by the loss.
    if "classes" in read_json(described) and (folder / VALIDATED).is_file():
        files.append(folder / VALIDATED)
        classes = classes_of(described)
        slides = read_slide_table(folder / VALIDATED, classes)
        area = evaluate_level(slides, classes, EvaluationSettings()).roc_auc.macro.value
        if area is None:
            raise UserError(
                f"{folder / VALIDATED}: a label has no usable slide, so there is no mean ROC AUC"
            )
        name, lowest, value = AREA, False, area
    else:
        chosen = model.chosen
        lowest = chosen.value is None
        name = "validation loss" if chosen.value is None else chosen.criterion
        value = chosen.valid_loss if chosen.value is None else chosen.value
    figure = ValidatedRun(
        run=run.name,
        seed=run.seed,
        fold=run.fold,
        value=round(float(value), 6),
        epoch=model.chosen.epoch,
    )
    return name, lowest, figure, {str(f.relative_to(results)): sha256_of(f) for f in files}


def tested(
    results: Path, study: Study, runs: Sequence[StudyRun], names: Sequence[str]
) -> tuple[list[TestedVariant], RunsCompared | None]:
    """Pool the folds of variants, and compare the variants with the first one.

    Args:
        results: the folder results/; the pooled folds go to the folder of the study in it.
        study: the study.
        runs: of the study; all of them classify slides, or predict outcomes.
        names: of the variants, the best one first.

    Raises:
        UserError: the runs are not the folds of a cross-validation, or were not evaluated.
    """
    variants, folders = [], []
    for name in names:
        for seed in seeds_of(study):
            of_model = [run for run in runs if (run.variant, run.seed) == (name, seed)]
            folder = _tested_folder(results, study, of_model, tested_name(study, name, seed))
            folders.append(folder)
            variants.append(_tested(results, folder, tested_name(study, name, seed)))
    return variants, compare_runs(folders) if len(folders) > 1 else None


def _tested_folder(results: Path, study: Study, runs: Sequence[StudyRun], name: str) -> Path:
    """Return the folder with test results; those of folds are pooled in it."""
    if study.folds is None:
        return results / runs[0].name
    folder = results / study.study / name
    pool_folds([results / run.name for run in runs]).write(folder)
    return folder


def _tested(results: Path, folder: Path, name: str) -> TestedVariant:
    run: TestedRun | TestedOutcomes
    (run,) = (read_tested_outcomes if predicts_outcomes(folder) else read_tested)([folder])
    proof: dict[str, Any] = {"claims": {}, "doubts": []}
    by = "one model"
    if (folder / FOLDS).is_file():
        folds = read_model(FoldsProof, folder / FOLDS)
        proof = {"claims": folds.claims, "doubts": folds.doubts}
        by = "mean" if folds.scores == "mean" else "the folds' models"
    return TestedVariant(
        name=name,
        folder=str(folder.relative_to(results)),
        patients=run.slides["patient"].nunique(),
        slides=len(run.slides),
        by=by,
        figures=run.figures,
        **proof,
    )


def inputs_of_tests(results: Path, variants: Sequence[TestedVariant]) -> dict[str, str]:
    """Return the SHA-256 of the test results of variants, by their path in results/."""
    names = [
        f"{variant.folder}/{name}"
        for variant in variants
        for name in (FOLDS, SLIDES, METRICS)
        if (results / variant.folder / name).is_file()
    ]
    return {name: sha256_of(results / name) for name in names}


def outdated(
    results: Path, written: StudyResults, settings: Mapping[str, dict[str, Any]]
) -> list[str]:
    """Return what differs between the results of a study and the present files.

    Args:
        results: the folder results/.
        written: the content of study.json.
        settings: that differ, by variant, in the file of the study.
    """
    faults = []
    stated = {variant.name: variant.settings for variant in written.variants}
    present = json.loads(json.dumps(settings))
    for name in sorted(stated.keys() | present.keys()):
        if stated.get(name) != present.get(name):
            faults.append(
                f"variant {name}: the file of the study has {present.get(name)}, the results "
                f"{stated.get(name)}"
            )
    for name, sha256 in written.inputs.items():
        path = results / name
        if not path.is_file():
            faults.append(f"{path}: does not exist any more")
        elif sha256_of(path) != sha256:
            faults.append(f"{path}: has changed")
    return faults
