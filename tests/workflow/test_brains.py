"""Real brains end to end: three labelled patients, one held out for testing, and one refused."""

import json
from pathlib import Path

import pytest
from clones import Clone

from gigatile.tables import read_table

SETTINGS = """\
run: brains
task: volume_segmentation
samples: brains.tsv
volumes: {modalities: [flair, t1c], labels: brats2013, spacing: [2, 2, 2]}
patches: {size: [48, 48, 48], per_case: 16, foreground: 0.5}
train:
  model: small_unet
  batch_size: 2
  epochs: 8
  segment_epochs: 8
  learning_rate: 0.003
evaluate: {resamples: 1000}
"""
COLUMNS = ("case", "patient", "flair", "t1c", "segmentation", "split")


@pytest.fixture(scope="module")
def run(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Return a clone after a run on the real cases."""
    clone = Clone(tmp_path_factory.mktemp("brains"))
    nifti = shared_data / "nifti"
    rows = [COLUMNS]
    for number, split in enumerate(("train", "valid", "test"), 1):
        folder = nifti / f"brats_2013_pat000{number}_1"
        names = ("Flair_subtrMeanDivStd", "T1c_subtrMeanDivStd", "OTMultiClass")
        files = (str(folder / f"{name}.nii.gz") for name in names)
        rows.append((f"pat{number}", f"pat{number}", *files, split))
    # Native scans on different grids. The segmentation of another patient is never read.
    native = nifti / "tcga_native_mismatched/TCGA-FG-6692"
    labels = nifti / "tcga_brats_space/TCGA-FG-6692/seg_fused_mav.nii.gz"
    volumes = (str(native / f"{name}.nii.gz") for name in ("fla", "t1c"))
    rows.append(("native", "TCGA-FG-6692", *volumes, str(labels), "test"))
    clone.write("brains.tsv", "".join("\t".join(row) + "\n" for row in rows))
    clone.write("brains.yaml", SETTINGS)
    clone.snakemake("--cores", "2", "--configfile", "brains.yaml")
    return clone


@pytest.mark.long
@pytest.mark.slow
def test_tumour_of_a_held_out_patient_is_segmented(run):
    rows = read_table(run.folder / "results/brains/evaluation/cases.tsv")
    dice = {row["region"]: float(row["dice"]) for row in rows if row["case"] == "pat3"}
    print("Dice of the held-out patient", dice)
    assert dice["whole_tumour"] > 0.6
    proof = json.loads((run.folder / "results/brains/splits.json").read_text())
    assert not any(proof["shared_patients"].values())
    page = (run.folder / "results/brains/report/cases/pat3.html").read_text()
    assert f"{dice['whole_tumour']:.3f}" in page


@pytest.mark.long
@pytest.mark.slow
def test_volumes_on_different_grids_are_refused(run):
    rows = {row["case"]: row for row in read_table(run.folder / "results/brains/cases.tsv")}
    assert [row["state"] for row in rows.values()] == ["prepared"] * 3 + ["failed"]
    assert "its volumes have different grids" in rows["native"]["reason"]
    assert "volumes.resample: true" in rows["native"]["reason"]
