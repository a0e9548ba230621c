"""The demo of `make demo-instances`, with fewer and shorter epochs: the whole one takes minutes."""

import os
import subprocess

import pytest
from clones import ROOT, Clone

from gigatile.files import read_json

SHORT = "train={epochs: 1, segment_epochs: 1, limit_batches: 2, warmup_steps: 1}"


@pytest.mark.long
@pytest.mark.slow
def test_demo_of_instances_runs(clone: Clone):
    asked = ["make", "-n", "-o", "setup", "demo-instances", "CORES=2"]
    # Without the options of a `make` that runs the tests.
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    made = subprocess.run(asked, cwd=ROOT, env=own, check=True, capture_output=True, text=True)
    (line,) = made.stdout.splitlines()
    program, *arguments = line.split()
    assert program == "gigatile"
    # `gigatile` is installed from the checkout, and would run the demo there.
    done = clone.run("python", "-m", program, *arguments, "--", "--config", SHORT)
    run = clone.folder / "results/demo-instances"
    assert str(run / "report/index.html") in done.stdout
    metrics = read_json(run / "evaluation/metrics.json")
    # Two steps teach nothing.
    assert metrics["n"] == 5 and metrics["instances"] > 200
    assert metrics["mask"]["ap"]["no_interval"] is None
    report = (run / "report/index.html").read_text()
    assert "None: each of the 28 images in the sample sheet was used." in report
    assert "By site." in report
    new = (run / "predictions/pages/index.html").read_text()
    assert "The model detected instances in 2 new images." in new and "G01-1" in new
