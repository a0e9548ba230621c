"""Pools the folds of a cross-validation: proves who was tested by which model, and evaluates.

Without patients that are held out, each patient is tested once, by the model of one fold. An area
under the ROC curve, or a concordance, of all patients then also compares predictions of different
models, which that of a fold does not; both are given. With patients that are held out, all models
test these, and the predictions are the means over the models. New slides that all models predicted
are pooled likewise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import pandas as pd

from gigatile.cohort.names import same_names
from gigatile.cohort.splits import SplitProof
from gigatile.errors import UserError, all_faults
from gigatile.evaluation.metrics_file import Interval
from gigatile.evaluation.outcome_table import read_outcome_table
from gigatile.evaluation.outcomes import median_risk
from gigatile.evaluation.tested_outcomes import TestedOutcomes
from gigatile.evaluation.tested_runs import METRICS, SLIDES
from gigatile.files import sha256_of
from gigatile.json_models import Written, read_model, write_model
from gigatile.model_files import DESCRIBED, MODEL
from gigatile.provenance.output_records import read_output_record, record_path
from gigatile.records.manifest import read_manifest
from gigatile.report.embeddings.records import EMBEDDINGS
from gigatile.report.inputs import CohortRow, TrainedModel, read_cohort
from gigatile.report.leakage import chain_check, manifest_faults
from gigatile.report.pooled_predictions import (
    MADE_FROM,
    PREDICTED,
    PooledPredictions,
    pool_predictions,
)
from gigatile.report.pooling import AnyTested, Pooling, open_pooling
from gigatile.report.provenance import Ledger
from gigatile.report.slides.records import TILES
from gigatile.settings.initial_weights import INITIAL_WEIGHTS
from gigatile.tables import write_table

PROOF, TABLE, SHARDS = "splits.json", "tiles.tsv", "shards/manifest.json"
VALIDATED = "validation/slides.tsv"
FOLDS, CALIBRATED = "folds.json", "evaluation/calibration.json"
SCORED = "every usable test slide was scored"
TESTED = "each model was trained on the shards of its fold, and tested"
PREDICTED_ALIKE = "the model of each fold predicted the same new slides"
# The folder of the records of a run on embeddings.
EMBEDDED = "embeddings"


class FoldFigures(Written):
    """The figures of one fold.

    Attributes:
        run: its name.
        fold: its number, from 1.
        patients, slides: numbers of the test split.
        figures: by name; of classes, by slide.
    """

    run: str
    fold: int
    patients: int
    slides: int
    figures: dict[str, Interval]


class FoldsProof(Written):
    """The content of folds.json.

    Attributes:
        folds: the figures of each fold.
        patients: number of patients of the sheet.
        scores: `one model`: each patient is tested by the model of one fold; `mean`: patients that
            are held out, by the mean of all models.
        claims: what was checked, with what was counted.
        doubts: what was not checked.
        inputs: SHA-256 of the files.
    """

    folds: list[FoldFigures]
    patients: int
    scores: Literal["one model", "mean"]
    claims: dict[str, str]
    doubts: list[str]
    inputs: dict[str, str]


@dataclass(frozen=True)
class PooledFolds:
    """The folds of a cross-validation together.

    Attributes:
        proof: what was checked, and the figures of each fold.
        pooling: the test results of the folds.
        slides: the test slides, with their scores or predicted outcomes.
        predictions: of new slides, by the mean of all models; None: there are none.
    """

    proof: FoldsProof
    pooling: Pooling
    slides: pd.DataFrame
    predictions: PooledPredictions | None

    def write(self, folder: Path) -> AnyTested:
        """Write folds.json, and the test results as those of a run; return them.

        Args:
            folder: to write into; `read_tested` reads it.

        Raises:
            UserError: it has something else, such as a run.
        """
        if folder.exists() and not (folder / FOLDS).exists() and any(folder.iterdir()):
            raise UserError(
                f"{folder}: exists and has no {FOLDS}, so it is not of pooled folds; name another "
                "folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_model(folder / FOLDS, self.proof)
        (folder / SLIDES).parent.mkdir(exist_ok=True)
        rows = self.slides.to_numpy(object).tolist()
        write_table(folder / SLIDES, list(self.slides.columns), rows)
        for name in (MADE_FROM, PREDICTED):
            (folder / name).unlink(missing_ok=True)
        if self.predictions is not None:
            self.predictions.write(folder, self.pooling.new.stated())
        sums = {name: sha256_of(folder / name) for name in (FOLDS, SLIDES)}
        (folder / CALIBRATED).unlink(missing_ok=True)
        if calibration := self.pooling.calibrate(self.slides, sums):
            write_model(folder / CALIBRATED, calibration)
        write_model(folder / METRICS, self.pooling.evaluate(self.slides, sums))
        (written,) = open_pooling([folder]).runs
        return written


@dataclass(frozen=True)
class _Fold:
    """A fold.

    Attributes:
        folder: of the run.
        run: its test results.
        proof: its splits.json.
        rows: of its table of slides.
        model: its description.
        faults: why its table, shards, model and test results do not belong together.
        inputs: SHA-256 of its files, by name.
    """

    folder: Path
    run: AnyTested
    proof: SplitProof
    rows: Sequence[CohortRow]
    model: TrainedModel
    faults: Sequence[str]
    inputs: dict[str, str]

    def patients(self, *splits: str) -> set[str]:
        """Return the patients of some splits; of all splits, if none is named."""
        return {row.patient for row in self.rows if not splits or row.split in splits}


def pool_folds(folders: Sequence[Path]) -> PooledFolds:
    """Prove and evaluate a cross-validation.

    Args:
        folders: of the runs, one for each fold, in any order.

    Raises:
        UserError: a run was not evaluated, its files do not belong together, or the runs are not
            all folds of one cross-validation: lists all faults.
    """
    opened = open_pooling(folders)
    runs = zip(opened.runs, folders, strict=True)
    folds = sorted((_read(run, folder) for run, folder in runs), key=lambda each: each.proof.fold)
    # The order in which the runs are named changes nothing.
    pooling = opened.of([fold.run for fold in folds])
    faults = _setting_faults(folds, pooling) or _leaks(folds)
    if faults:
        raise all_faults("these runs are not the folds of one cross-validation", faults)
    first, held_out = folds[0], bool(folds[0].proof.held_out)
    predictions = pool_predictions([fold.folder for fold in folds], pooling.new)
    claims = _claims_of_held_out(folds) if held_out else _claims(folds)
    inputs = {name: sha256 for fold in folds for name, sha256 in fold.inputs.items()}
    if predictions is not None:
        claims[PREDICTED_ALIKE] = f"{len(predictions.slides)} slides"
        inputs |= predictions.inputs
    proof = FoldsProof(
        folds=[_figures(fold) for fold in folds],
        patients=len(first.patients()),
        scores="mean" if held_out else "one model",
        claims=claims,
        doubts=[
            f"{fold.run.name} started from other weights; its report says what is known of them"
            for fold in folds
            if INITIAL_WEIGHTS in fold.model.inputs
        ],
        inputs=inputs,
    )
    slides = pooling.mean() if held_out else pooling.together()
    return PooledFolds(proof, pooling, slides, predictions)


def _claims(folds: Sequence[_Fold]) -> dict[str, str]:
    patients = f"{len(folds[0].patients())} patients"
    pairs = len(list(combinations(folds, 2)))
    slides = sum(len(fold.run.slides) for fold in folds)
    return {
        "each patient of the sheet is in the test split of exactly one fold": patients,
        "no two folds have the same test patient, in any spelling": f"{pairs} pairs",
        "no test patient of a fold trains or validates in it": f"{len(folds)} folds",
        "every scored slide is a test slide of its fold": f"{slides} slides",
        SCORED: f"{len(folds)} folds",
        TESTED: f"{len(folds)} models",
    }


def _claims_of_held_out(folds: Sequence[_Fold]) -> dict[str, str]:
    held_out, others = len(folds[0].patients("test")), len(folds[0].patients("train", "valid"))
    pairs = len(list(combinations(folds, 2)))
    return {
        "all folds have the same test patients": f"{held_out} patients",
        "no test patient trains or validates in any fold": f"{len(folds)} folds",
        "each other patient is in the validation split of exactly one fold": f"{others} patients",
        "no two folds have the same validation patient, in any spelling": f"{pairs} pairs",
        "all models scored the same test slides": f"{len(folds[0].run.slides)} slides",
        SCORED: f"{len(folds)} folds",
        TESTED: f"{len(folds)} models",
    }


def _read(run: AnyTested, folder: Path) -> _Fold:
    """Read a fold, and check its chain from the table of slides to the test results."""
    ledger = Ledger()
    described = f"model/{DESCRIBED}"
    is_survival = isinstance(run, TestedOutcomes) and run.metrics.survival is not None
    validated = (VALIDATED,) if is_survival else ()
    for name in (PROOF, TABLE, SHARDS, described, f"model/{MODEL}", *validated, SLIDES, METRICS):
        ledger.add(name, folder / name, "")
    model = read_model(TrainedModel, folder / described)
    ledger.check(described, model.inputs, folder / described)
    ledger.check(METRICS, run.metrics.inputs, folder / METRICS)
    rows = read_cohort(folder / TABLE, "slide", ("label", "tiles"), "tiles")
    needed = {described: (SHARDS,), METRICS: (TABLE, *validated, SLIDES)}
    usable = [row for row in rows if row.state != "failed"]
    manifest = read_manifest(folder / SHARDS)
    embedded = f"{EMBEDDED}/<slide>.tfrecord of train" in manifest.inputs
    kind, records = (EMBEDDINGS, EMBEDDED) if embedded else (TILES, "tiles")
    faults = [
        *chain_check(ledger, model.chosen.epoch, model.inputs, needed).faults,
        *manifest_faults(manifest, usable, kind, "slide", records),
    ]
    if not {described, f"model/{MODEL}"} & run.metrics.inputs.keys():
        faults.append(f"{METRICS} does not say which model was tested")
    if isinstance(run, TestedOutcomes) and run.metrics.survival is not None:
        median = median_risk(read_outcome_table(folder / VALIDATED))
        if run.metrics.survival.threshold != median:
            faults.append(f"the threshold in {METRICS} is not the median risk of {VALIDATED}")
    record = read_output_record(record_path(folder, "evaluate"))
    faults += [
        f"{name} was changed after the evaluation"
        for name in (SLIDES, METRICS)
        if record is not None
        and name in record.outputs
        and record.outputs[name].sha256 != sha256_of(folder / name)
    ]
    return _Fold(
        folder,
        run,
        read_model(SplitProof, folder / PROOF),
        rows,
        model,
        [f"{run.name}: {fault}" for fault in faults],
        {f"{run.name}/{entry.name}": entry.sha256 for entry in ledger.entries},
    )


def _setting_faults(folds: Sequence[_Fold], pooling: Pooling) -> list[str]:
    """Return what differs between runs that must be equal in all folds, and missing folds."""
    first, faults = folds[0], []
    for fold in folds:
        name, proof = fold.run.name, fold.proof
        if proof.folds is None:
            faults.append(f"{name} was not split into folds (split.folds)")
            continue
        for what, value, expected in (
            ("seed", proof.seed, first.proof.seed),
            ("number of folds", proof.folds, first.proof.folds),
            ("split.by", proof.by, first.proof.by),
            ("split.held_out", proof.held_out, first.proof.held_out),
            ("sample sheet", proof.sheet_sha256, first.proof.sheet_sha256),
            (pooling.kind, pooling.predicts(fold.run), pooling.predicts(first.run)),
        ):
            if value != expected:
                faults.append(f"{name} has another {what} than {first.run.name}")
    if faults:
        return faults
    numbers = [fold.proof.fold for fold in folds]
    faults += [
        f"fold {number} is given {numbers.count(number)} times"
        for number in sorted(set(numbers))
        if numbers.count(number) > 1
    ]
    missing = sorted(set(range(1, (first.proof.folds or 0) + 1)) - set(numbers))
    return [*faults, *(f"fold {number} is missing" for number in missing)]


def _leaks(folds: Sequence[_Fold]) -> list[str]:
    """Return what contradicts the claims of `FoldsProof`."""
    everyone, held_out = folds[0].patients(), bool(folds[0].proof.held_out)
    faults = [fault for fold in folds for fault in _leaks_of(fold, everyone)]
    split, does = ("valid", "validate") if held_out else ("test", "test")
    for first, second in combinations(folds, 2):
        faults += [
            f"{first.run.name} and {second.run.name} both {does} patient {' / '.join(sorted(same))}"
            for same in _in_both(first.patients(split), second.patients(split))
        ]
    if held_out:
        faults += _other_tests(folds)
        everyone = everyone - folds[0].patients("test")
    dealt = set().union(*(fold.patients(split) for fold in folds))
    return faults + [
        f"patient {name!r} is in the {split} split of no fold" for name in sorted(everyone - dealt)
    ]


def _other_tests(folds: Sequence[_Fold]) -> list[str]:
    """Return the folds with other test patients or slides than the first one."""
    first, *others = folds
    slides, faults = set(first.run.slides["slide"]), []
    for fold in others:
        if other := fold.patients("test") ^ first.patients("test"):
            faults.append(
                f"{fold.run.name}: patient {min(other)!r} is held out in only one of this run and "
                f"{first.run.name}"
            )
        elif missing := slides ^ set(fold.run.slides["slide"]):
            faults.append(
                f"{fold.run.name}: slide {min(missing)!r} was scored in only one of this run and "
                f"{first.run.name}"
            )
    return faults


def _leaks_of(fold: _Fold, everyone: set[str]) -> list[str]:
    """Return the faults of one fold; `everyone`: the patients that each fold must have."""
    faults, name = list(fold.faults), fold.run.name
    if other := fold.patients() ^ everyone:
        faults.append(f"{name}: patient {min(other)!r} is only in some folds")
    faults += [
        f"{name}: patient {' / '.join(sorted(same))} is tested, and in train or valid"
        for same in _in_both(fold.patients("test"), fold.patients("train", "valid"))
    ]
    known = {row.id: row for row in fold.rows}
    for slide in fold.run.slides.to_dict("records"):
        row = known.get(slide["slide"])
        if row is None or row.split != "test":
            faults.append(f"{name}: the scored slide {slide['slide']} is no test slide")
        elif (row.patient, row.label) != (slide["patient"], slide["label"]):
            faults.append(f"{name}: slide {slide['slide']} was scored as another patient's")
    scored = set(fold.run.slides["slide"])
    faults += [
        f"{name}: test slide {row.id!r} was not scored"
        for row in fold.rows
        if row.split == "test" and row.state != "failed" and row.id not in scored
    ]
    return faults


def _in_both(first: set[str], second: set[str]) -> list[set[str]]:
    """Return the patients in both sets, with all spellings of their ids."""
    spelled = [set(names) for names in same_names(sorted(first | second))]
    known = set().union(*spelled)
    return [{name} for name in sorted((first & second) - known)] + [
        names for names in spelled if names & first and names & second
    ]


def _figures(fold: _Fold) -> FoldFigures:
    return FoldFigures(
        run=fold.run.name,
        fold=fold.proof.fold,
        patients=fold.run.slides["patient"].nunique(),
        slides=len(fold.run.slides),
        figures=fold.run.figures,
    )
