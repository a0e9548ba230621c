"""Real tissue end to end: slides stitched from real lung tiles, and a model that classifies them.

The settings are those of docs/lung-tissue.md, except for half of the patients and 8 epochs instead
of 20.
"""

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.slow
def test_model_classifies_lung_tissue(clone, shared_data):
    subprocess.run(
        [
            *(sys.executable, shared_data.parent / "tools/lung_cohort.py", shared_data / "lung"),
            *(clone.folder / "lung", "--patients-per-class", "30"),
        ],
        check=True,
    )
    page = (ROOT / "docs/lung-tissue.md").read_text()
    clone.write("lung.yaml", re.search(r"```yaml\n(.*?)```", page, re.DOTALL).group(1))
    shorter = ("--config", "train={epochs: 8}")
    clone.snakemake("--cores", "2", "--configfile", "lung.yaml", *shorter)

    results = clone.folder / "results/lung"
    described = json.loads((results / "model/settings.json").read_text())
    assert described["tiles"]["size"] == 224 and described["train"]["ranks"] == 2
    assert described["train"]["epochs"] in (4, 8) and described["train"]["batch_size"] == 16
    proof = json.loads((results / "splits.json").read_text())
    assert not any(proof["shared_patients"].values())
    metrics = json.loads((results / "evaluation/metrics.json").read_text())
    auc = metrics["slide"]["roc_auc"]["macro"]
    print("slide-level macro ROC AUC", auc, "of", metrics["slide"]["n"], "test slides")
    assert auc["value"] >= 0.8

    # No tissue is lost, thin normal lung included, and the test in the report finds no difference.
    with (results / "tiles.tsv").open() as rows:
        slides = list(csv.DictReader(rows, delimiter="\t"))
    assert {row["state"] for row in slides} == {"tiled"}
    # The slides have 4 tiles of each patient; a few cells of glass at their edges are kept, too.
    kept = Counter()
    for row in slides:
        kept[row["label"]] += int(row["tiles"])
    assert all(120 <= count <= 125 for count in kept.values()) and len(kept) == 3, kept
    page = (results / "report/index.html").read_text()
    assert "Tiles with tissue dropped" in page
    assert "Missing data depends on the label" not in page
