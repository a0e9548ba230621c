"""Pools the folds of a cross-validation: proves that each patient was tested once, and evaluates.

The figures of all patients are those of their folds' models together. An area under the ROC curve
then also compares scores of different models, which that of a fold does not; both are given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pandas as pd

from gigatile.cohort.names import same_names
from gigatile.cohort.splits import SplitProof
from gigatile.errors import all_faults
from gigatile.evaluation.metrics import evaluate
from gigatile.evaluation.metrics_file import Interval, SlideMetrics
from gigatile.evaluation.tested_runs import METRICS, SLIDES, TestedRun, read_tested
from gigatile.json_models import Written, read_model
from gigatile.model_files import DESCRIBED, MODEL
from gigatile.records.manifest import read_manifest
from gigatile.report.embeddings.records import EMBEDDINGS
from gigatile.report.inputs import CohortRow, TrainedModel, read_cohort
from gigatile.report.leakage import chain_check, manifest_faults
from gigatile.report.provenance import Ledger
from gigatile.report.slides.records import TILES
from gigatile.settings.initial_weights import INITIAL_WEIGHTS

PROOF, TABLE, SHARDS = "splits.json", "tiles.tsv", "shards/manifest.json"
# The folder of the records of a run on embeddings.
EMBEDDED = "embeddings"


class FoldFigures(Written):
    """The figures of one fold, by slide.

    Attributes:
        run: its name.
        fold: its number, from 1.
        patients, slides: numbers of the test split.
    """

    run: str
    fold: int
    patients: int
    slides: int
    accuracy: Interval
    roc_auc: Interval
    average_precision: Interval


class PooledFolds(Written):
    """The content of folds.json.

    Attributes:
        folds: the figures of each fold.
        patients: number of patients of the sheet; each is in the test split of exactly one fold.
        claims: what was checked, with what was counted.
        doubts: what was not checked.
        pooled: the figures of all test slides.
        inputs: SHA-256 of the files.
    """

    folds: list[FoldFigures]
    patients: int
    claims: dict[str, str]
    doubts: list[str]
    pooled: SlideMetrics
    inputs: dict[str, str]


@dataclass(frozen=True)
class _Fold:
    """A fold.

    Attributes:
        run: its test results.
        proof: its splits.json.
        rows: of its table of slides.
        model: its description.
        faults: why its table, shards, model and test results do not belong together.
        inputs: SHA-256 of its files, by name.
    """

    run: TestedRun
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
    runs = zip(read_tested(folders), folders, strict=True)
    folds = sorted((_read(run, folder) for run, folder in runs), key=lambda each: each.proof.fold)
    faults = _setting_faults(folds) or _leaks(folds)
    if faults:
        raise all_faults("these runs are not the folds of one cross-validation", faults)
    first = folds[0].run
    slides = pd.concat([fold.run.slides for fold in folds], ignore_index=True)
    if any("call_vote" not in fold.run.slides for fold in folds):
        slides = slides.drop(columns="call_vote", errors="ignore")
    patients = folds[0].patients()
    pairs, count = list(combinations(folds, 2)), f"{len(patients)} patients"
    return PooledFolds(
        folds=[_figures(fold) for fold in folds],
        patients=len(patients),
        claims={
            "each patient of the sheet is in the test split of exactly one fold": count,
            "no two folds have the same test patient, in any spelling": f"{len(pairs)} pairs",
            "no test patient of a fold trains or validates in it": f"{len(folds)} folds",
            "every scored slide is a test slide of its fold": f"{len(slides)} slides",
            "each model was trained on the shards of its fold, and tested": f"{len(folds)} models",
        },
        doubts=[
            f"{fold.run.name} started from other weights; its report says what is known of them"
            for fold in folds
            if INITIAL_WEIGHTS in fold.model.inputs
        ],
        pooled=evaluate(slides, first.classes, first.settings, {}),
        inputs={name: sha256 for fold in folds for name, sha256 in fold.inputs.items()},
    )


def _read(run: TestedRun, folder: Path) -> _Fold:
    """Read a fold, and check its chain from the table of slides to the test results."""
    ledger = Ledger()
    described = f"model/{DESCRIBED}"
    for name in (PROOF, TABLE, SHARDS, described, f"model/{MODEL}", SLIDES, METRICS):
        ledger.add(name, folder / name, "")
    model = read_model(TrainedModel, folder / described)
    ledger.check(described, model.inputs, folder / described)
    ledger.check(METRICS, run.metrics.inputs, folder / METRICS)
    rows = read_cohort(folder / TABLE, "slide", ("label", "tiles"), "tiles")
    needed = {described: (SHARDS,), METRICS: (TABLE, SLIDES)}
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
    return _Fold(
        run,
        read_model(SplitProof, folder / PROOF),
        rows,
        model,
        [f"{run.name}: {fault}" for fault in faults],
        {f"{run.name}/{entry.name}": entry.sha256 for entry in ledger.entries},
    )


def _setting_faults(folds: Sequence[_Fold]) -> list[str]:
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
            ("sample sheet", proof.sheet_sha256, first.proof.sheet_sha256),
            ("set of classes", list(fold.run.classes), list(first.run.classes)),
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
    """Return what contradicts the claims of `PooledFolds`."""
    everyone = folds[0].patients()
    faults = [fault for fold in folds for fault in _leaks_of(fold, everyone)]
    for first, second in combinations(folds, 2):
        faults += [
            f"{first.run.name} and {second.run.name} both test patient {' / '.join(sorted(same))}"
            for same in _in_both(first.patients("test"), second.patients("test"))
        ]
    tested = set().union(*(fold.patients("test") for fold in folds))
    return faults + [f"patient {name!r} is tested in no fold" for name in sorted(everyone - tested)]


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
    return faults


def _in_both(first: set[str], second: set[str]) -> list[set[str]]:
    """Return the patients in both sets, with all spellings of their ids."""
    spelled = [set(names) for names in same_names(sorted(first | second))]
    known = set().union(*spelled)
    return [{name} for name in sorted((first & second) - known)] + [
        names for names in spelled if names & first and names & second
    ]


def _figures(fold: _Fold) -> FoldFigures:
    level = fold.run.metrics.slide
    return FoldFigures(
        run=fold.run.name,
        fold=fold.proof.fold,
        patients=fold.run.slides["patient"].nunique(),
        slides=len(fold.run.slides),
        accuracy=level.accuracy.mean_call,
        roc_auc=level.roc_auc.macro,
        average_precision=level.average_precision.macro,
    )
