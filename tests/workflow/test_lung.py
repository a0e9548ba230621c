"""Real tissue end to end: slides stitched from real lung tiles, and a model that tells them apart.

The settings are those that docs/lung-tissue.md shows.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_lung_tissue_is_told_apart(clone, shared_data):
    subprocess.run(
        [
            *(sys.executable, shared_data.parent / "tools/lung_cohort.py", shared_data / "lung"),
            *(clone.folder / "lung", "--patients-per-class", "60"),
        ],
        check=True,
    )
    page = (ROOT / "docs/lung-tissue.md").read_text()
    clone.write("lung.yaml", re.search(r"```yaml\n(.*?)```", page, re.DOTALL).group(1))
    clone.snakemake("--cores", "2", "--configfile", "lung.yaml")

    results = clone.folder / "results/lung"
    described = json.loads((results / "model/settings.json").read_text())
    assert described["tiles"]["size"] == 224 and described["train"]["ranks"] == 2
    proof = json.loads((results / "splits.json").read_text())
    assert not any(proof["shared_patients"].values())
    figures = json.loads((results / "evaluation/metrics.json").read_text())
    auc = figures["slide"]["roc_auc"]["macro"]
    print("slide-level macro ROC AUC", auc, "of", figures["slide"]["n"], "test slides")
    assert auc["value"] >= 0.97
