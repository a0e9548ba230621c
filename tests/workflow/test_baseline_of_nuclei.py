"""The baseline of nuclei on the test images of a run, next to the run's model."""

import re
import shutil

import pytest
from clones import Clone

from gigatile.evaluation.coco import average_precision
from gigatile.files import read_json, write_json


@pytest.mark.long
def test_baseline_of_nuclei_and_model_are_evaluated_alike(instances_run: Clone, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(instances_run.folder / "results/small", run)
    truth = read_json(run / "evaluation/truth.json")
    # A model that misses the last nucleus, and is not sure about the first.
    results = [entry | {"score": 0.9} for entry in truth["annotations"][:-1]]
    results[0] |= {"score": 0.3}
    write_json(run / "evaluation/detections.json", results)
    line = ("python", "benchmarks/nuclei_baseline.py", "--run-dir", str(run))
    groups = ("--samples", "cohort/images.tsv", "--group-by")
    printed = instances_run.run(*line, *groups, "site").stdout
    counts = [("north", "1"), ("south", "2"), ("all", "3")]
    assert re.findall(r"^(\w+): (\d) images", printed, re.MULTILINE) == counts
    values = re.findall(r"^  (model|baseline) +([\d.]+) +([\d.]+) ", printed, re.MULTILINE)
    expected = average_precision(truth, results, "segm")
    assert values[-2] == ("model", *(f"{expected[name]:.3f}" for name in ("ap50", "ap")))
    # A threshold finds the drawn nuclei, which are dark.
    assert float(values[-1][1]) > 0.8
    done = instances_run.run(*line, *groups, "kind", check=False)
    assert done.returncode != 0 and "has no column 'kind'" in done.stderr
