"""Runs of the folds of a cross-validation, and edits that keep the recorded checksums right."""

from pathlib import Path

from slide_runs import CLASSES, Plan, build_run

from gigatile.cohort.samples import Sample
from gigatile.cohort.splits import assign, prove_splits
from gigatile.files import read_json, sha256_of, write_json
from gigatile.json_models import write_model
from gigatile.settings.split import SplitSettings

PATIENTS = {f"P{number:02}": CLASSES[number % 3] for number in range(18)}


def build_fold(
    folder: Path, fold: int, folds: int = 3, seed: int = 44, held_out: float = 0
) -> Path:
    settings = SplitSettings(folds=folds, fold=fold, seed=seed, held_out=held_out)
    members = [
        Sample(f"S{patient}", patient, label, Path(patient), None, "", "", 2)
        for patient, label in PATIENTS.items()
    ]
    splits = assign(members, settings)
    plans = [
        Plan(m.slide, m.patient, m.label, splits[m.patient], columns=3, rows=3) for m in members
    ]
    run = build_run(folder / f"fold-{fold}", plans)
    write_model(run / "splits.json", prove_splits(members, splits, settings, "ab" * 32))
    return run


def restate(run: Path, by: str, name: str) -> None:
    content = read_json(run / by)
    inputs = content["inputs"] | {name: sha256_of(run / name)}
    write_json(run / by, content | {"inputs": inputs})
