"""Pools the folds of a cross-validation: proves that each patient was tested once, and evaluates.

The figures of all patients are those of their folds' models together. An area under the ROC curve
then also compares scores of different models, which each fold alone does not; both are given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pandas as pd

from gigatile.cohort.names import same_names
from gigatile.cohort.splits import SplitProof
from gigatile.errors import UserError, all_faults
from gigatile.evaluation.metrics import evaluate
from gigatile.evaluation.metrics_file import Interval, SlideMetrics
from gigatile.evaluation.tested_runs import TestedRun, read_tested
from gigatile.files import sha256_of
from gigatile.json_models import Written, read_model
from gigatile.settings.split import SPLITS
from gigatile.tables import read_table

PROOF, SPLIT_TABLE = "splits.json", "splits.tsv"


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
        pooled: the figures of all test slides.
        inputs: SHA-256 of the files.
    """

    folds: list[FoldFigures]
    patients: int
    claims: dict[str, str]
    pooled: SlideMetrics
    inputs: dict[str, str]


@dataclass(frozen=True)
class _Fold:
    """A fold: its run, its settings, and the rows of its splits.tsv."""

    run: TestedRun
    proof: SplitProof
    rows: Sequence[Mapping[str, str]]
    inputs: Mapping[str, str]

    def patients(self, *splits: str) -> set[str]:
        """Return the patients of some splits."""
        return {row["patient"] for row in self.rows if row["split"] in splits}


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
    faults = _setting_faults(folds) or _patient_faults(folds)
    if faults:
        raise all_faults("these runs are not the folds of one cross-validation", faults)
    first = folds[0].run
    slides = pd.concat([fold.run.slides for fold in folds], ignore_index=True)
    if any("call_vote" not in fold.run.slides for fold in folds):
        slides = slides.drop(columns="call_vote", errors="ignore")
    inputs = {name: sha for fold in folds for name, sha in fold.inputs.items()}
    patients = folds[0].patients(*SPLITS)
    pairs, count = list(combinations(folds, 2)), f"{len(patients)} patients"
    return PooledFolds(
        folds=[_figures(fold) for fold in folds],
        patients=len(patients),
        claims={
            "each patient of the sheet is in the test split of exactly one fold": count,
            "no two folds have the same test patient, in any spelling": f"{len(pairs)} pairs",
            "no test patient of a fold trains or validates in it": f"{len(folds)} folds",
            "every scored slide is a test slide of its fold": f"{len(slides)} slides",
        },
        pooled=evaluate(slides, first.classes, first.settings, inputs),
        inputs=inputs,
    )


def _read(run: TestedRun, folder: Path) -> _Fold:
    for name in (PROOF, SPLIT_TABLE):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: has no {name}; name the folder of a run")
    sums = {f"{run.name}/{name}": sha256_of(folder / name) for name in (PROOF, SPLIT_TABLE)}
    return _Fold(
        run,
        read_model(SplitProof, folder / PROOF),
        read_table(folder / SPLIT_TABLE, ("slide", "patient", "label", "split")),
        {**run.inputs, **sums},
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


def _patient_faults(folds: Sequence[_Fold]) -> list[str]:
    """Return what contradicts the claims of `PooledFolds`."""
    faults = []
    everyone = folds[0].patients(*SPLITS)
    for fold in folds:
        name, tested = fold.run.name, fold.patients("test")
        if fold.patients(*SPLITS) != everyone:
            other = sorted(fold.patients(*SPLITS) ^ everyone)[0]
            faults.append(f"{name}: patient {other!r} is only in some folds")
        faults += [
            f"{name}: patient {' / '.join(sorted(same))} is tested, and in train or valid"
            for same in _in_both(tested, fold.patients("train", "valid"))
        ]
        known = {row["slide"]: row for row in fold.rows}
        for slide in fold.run.slides.to_dict("records"):
            row = known.get(slide["slide"])
            if row is None or row["split"] != "test":
                faults.append(f"{name}: the scored slide {slide['slide']} is no test slide")
            elif any(row[key] != slide[key] for key in ("patient", "label")):
                faults.append(f"{name}: slide {slide['slide']} was scored as another patient's")
    for first, second in combinations(folds, 2):
        faults += [
            f"{first.run.name} and {second.run.name} both test patient {' / '.join(sorted(same))}"
            for same in _in_both(first.patients("test"), second.patients("test"))
        ]
    tested = set().union(*(fold.patients("test") for fold in folds))
    return faults + [f"patient {name!r} is tested in no fold" for name in sorted(everyone - tested)]


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
