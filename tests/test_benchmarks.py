"""Every benchmark runs, at a size that says nothing of speed, and its page names it."""

import subprocess
import sys

import pytest
from clones import ROOT

# A ratio of each is looked for in what it prints, never how large it is.
SMALL = {
    "command": (["--slides", "20", "--rounds", "1"], "gigatile / snakemake"),
    "dag": (["--slides", "60", "--rounds", "1"], "gigatile / bare"),
    "coverage": (["--cohorts", "2", "--patients", "3", "5"], "lowest coverage"),
    "deep_zoom": (["--tiles", "20", "--rounds", "1"], "viewer / generator"),
    "embeddings": (
        [
            *("--count", "33", "--slides", "2", "--tiles", "20", "--dimensions", "8"),
            *("--rounds", "1", "--many", "2"),
        ],
        "ours / in memory, speed",
    ),
    "evaluation": (["--cases", "40", "--resamples", "5", "--rounds", "1"], "ours / scikit-learn"),
    "gpus": (
        [
            *("--model", "small_cnn", "--batch-size", "2", "--tiles", "64", "--side", "16"),
            *("--volume-model", "small_unet", "--patches", "1", "--rounds", "1"),
        ],
        "of the step alone",
    ),
    "instances": (
        [
            *("--images", "4", "--steps", "1", "--coco-images", "10", "--nuclei", "400"),
            *("--rounds", "1"),
        ],
        "input / model",
    ),
    "nuclei_baseline": (["--limit", "2"], "all: 2 images"),
    "object_store": (
        ["--cells", "1", "1", "--rounds", "1", "--tiles", "300"],
        "in the second; first batch",
    ),
    "preparation": (["--drawn", "3", "--spacing", "3", "--rounds", "1"], "ours, 3 mm"),
    "reading": (["--tiles", "128", "--shard-mb", "1", "--rounds", "1"], "ours / bare decoding"),
    "records": (["--tiles", "50", "--rounds", "1"], "ours / TensorFlow's reader"),
    "resume": (
        ["--records", "5000", "--tiles", "3000", "--shards", "20", "--rounds", "1"],
        "slowest / fastest",
    ),
    "serving": (
        ["--seconds", "2", "--rounds", "1", "--clients", "4", "--tiles", "2"],
        "server / model",
    ),
    "shards": (["--sizes", "0.05", "0.06", "--rounds", "1"], "times as long as copied"),
    "tiling": (["--cells", "1", "1", "--rounds", "1", "--times", "1", "2"], "ours / floor"),
    "volumes": (
        [
            *("--cases", "2", "--spacing", "3", "--patch", "32", "--per-case", "2"),
            *("--rounds", "1", "--many", "3", "6"),
        ],
        "ours / held in memory",
    ),
    "whole_slides": (
        ["--sides", "250", "500", "--window", "256", "--rounds", "1", "--scale", "0.25"],
        "two ranks / one",
    ),
    "training": (["--steps", "1", "--rounds", "1", "--batch", "4"], "ours / fit"),
}
# They start a cluster and wait for minutes between jobs, which is what they time; or a machine of
# Linux in a process, in which the whole workflow takes minutes.
ON_THE_CLUSTER = {"slurm", "many_slides", "storage"}
# It needs a cohort; see workflow/test_recipes.py.
ON_A_COHORT = {"recipes"}


def test_every_benchmark_is_tested_and_documented():
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert names == set(SMALL) | ON_THE_CLUSTER | ON_A_COHORT
    page = (ROOT / "docs/speed.md").read_text()
    assert [name for name in names if f"| `python benchmarks/{name}.py" not in page] == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_benchmark_runs(name):
    options, ratio = SMALL[name]
    line = [sys.executable, f"benchmarks/{name}.py", *options]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert ratio in done.stdout
