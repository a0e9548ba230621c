#!/usr/bin/env python3
"""Compare ways to train on one cohort: several seeds each, the same split and test slides.

Candidates for the last recipe are trained with the first seed; the one with the lowest validation
loss is trained with all seeds. The test slides decide nothing. The workflow runs all of it: of each
training, only what depends on the settings of the training runs again.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from dag import SNAKEMAKE
from scipy import stats

COLOURS = {
    "stain": 0.05,
    "brightness": 0.1,
    "contrast": 0.1,
    "saturation": 0.1,
    "hue": 5,
    "scale": 0.1,
    "blur": 1,
    "noise": 4,
    "jpeg_quality": 60,
    "cutout": 0.25,
}
ADAMW = {"weight_decay": 0.01, "schedule": "cosine", "warmup_steps": 50, "clip_norm": 1}
BASIC = {"small_cnn": {"model": "small_cnn"}, "resnet18": {"model": "resnet18"}}
CANDIDATES = {
    "small_cnn, AdamW, cosine": {"model": "small_cnn", **ADAMW},
    "small_cnn, AdamW, cosine, colours": {"model": "small_cnn", **ADAMW, "augmentation": COLOURS},
    "resnet18, AdamW, cosine": {"model": "resnet18", **ADAMW},
    "resnet18, AdamW, cosine, colours": {"model": "resnet18", **ADAMW, "augmentation": COLOURS},
}


@dataclass(frozen=True)
class Result:
    """What a training reached; `low` and `high` are those of the interval over patients."""

    recipe: str
    seed: int
    valid_loss: float
    epoch: int
    auc: float
    low: float | None
    high: float | None
    accuracy: float
    seconds: float


def train(configuration: Path, recipe: str, values: dict[str, Any], seed: int) -> Result:
    """Train and evaluate; the results of the run are replaced."""
    train = {"seed": seed, **values}
    augmentation = train.pop("augmentation", None)
    options = [f"train={json.dumps(train)}"]
    if augmentation:
        options.append(f"augmentation={json.dumps(augmentation)}")
    results = Path("results") / yaml.safe_load(configuration.read_text())["run"]
    wanted = results / "evaluation/metrics.json"
    line = [SNAKEMAKE, str(wanted), "--cores", "all", "--configfile", str(configuration)]
    start = time.monotonic()
    done = subprocess.run([*line, "--config", *options], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    slides = json.loads(wanted.read_text())["slide"]
    auc = slides["roc_auc"]["macro"]
    described = json.loads((results / "model/settings.json").read_text())
    assert described["train"]["seed"] == seed and described["train"]["model"] == train["model"]
    return Result(
        recipe=recipe,
        seed=seed,
        valid_loss=described["chosen"]["valid_loss"],
        epoch=described["chosen"]["epoch"],
        auc=auc["value"],
        low=auc["low"],
        high=auc["high"],
        accuracy=slides["accuracy"]["mean_call"]["value"],
        seconds=time.monotonic() - start,
    )


def mean_interval(values: list[float]) -> str:
    """Return the mean over the seeds with its 95 % interval (Student's t)."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.3f}"
    half = float(stats.t.ppf(0.975, len(values) - 1)) * np.std(values, ddof=1)
    half /= math.sqrt(len(values))
    return f"{mean:.3f} ± {half:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--configfile", type=Path, required=True, help="of the cohort")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each recipe")
    parser.add_argument("--basic", nargs="+", default=list(BASIC), choices=BASIC)
    parser.add_argument("--candidates", nargs="+", default=list(CANDIDATES), choices=CANDIDATES)
    args = parser.parse_args()
    start = time.monotonic()
    known: dict[tuple[str, int], Result] = {}

    def result(recipe: str, values: dict[str, Any], seed: int) -> Result:
        if (recipe, seed) not in known:
            known[recipe, seed] = train(args.configfile, recipe, values, seed)
            print(json.dumps(asdict(known[recipe, seed])), flush=True)
        return known[recipe, seed]

    best = min(args.candidates, key=lambda recipe: result(recipe, CANDIDATES[recipe], 1).valid_loss)
    recipes = {name: BASIC[name] for name in args.basic} | {best: CANDIDATES[best]}
    print("recipe | validation loss | slide ROC AUC | seeds | 95 % of patients, seed 1 | accuracy")
    for recipe, values in recipes.items():
        results = [result(recipe, values, seed) for seed in range(1, args.seeds + 1)]
        losses, aucs, accuracies = (
            [getattr(each, name) for each in results] for name in ("valid_loss", "auc", "accuracy")
        )
        patients = f"{results[0].low}-{results[0].high}"
        print(
            f"{recipe} | {mean_interval(losses)} | {mean_interval(aucs)} | "
            f"{min(aucs):.3f}-{max(aucs):.3f} | {patients} | {mean_interval(accuracies)}",
            flush=True,
        )
    seconds = time.monotonic() - start
    print(f"{len(known)} trainings in {seconds / 60:.0f} min; best on validation: {best}")


if __name__ == "__main__":
    main()
