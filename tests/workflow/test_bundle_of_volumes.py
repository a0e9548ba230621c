"""The bundle of a segmentation of volumes."""

import json
import os
import shutil

import pytest
from bundles import bundle_of, predict_with

from gigatile.tables import read_table


@pytest.mark.long
def test_volumes(volumes_run, tmp_path):
    """The same segmentation, byte for byte, with the run's windows and regions."""
    run = volumes_run.copy(tmp_path / "copy")
    bundle = bundle_of(run, "volumes.yaml", tmp_path / "bundle")
    case = run.folder / "cohort/volumes/V17-1"
    names = ("flair", "t1", "t1gd", "t2")
    files = "\t".join(str(case / f"{name}.nii.gz") for name in names)
    sheet = tmp_path / "new.tsv"
    sheet.write_text("case\t" + "\t".join(names) + f"\nN1\t{files}\n")
    _, predictions = predict_with(run, bundle, tmp_path / "out", sheet)
    expected = run.folder / "results/small/evaluation/segmentations/V17-1.nii.gz"
    assert (predictions / "segmentations/N1.nii.gz").read_bytes() == expected.read_bytes()
    (match,) = read_table(predictions / "in_cohort.tsv")
    assert match["equal_images"] == "4"
    done, _ = predict_with(run, bundle, tmp_path / "files", case / "t1.nii.gz", check=False)
    assert "the files of a case are named in a sheet" in done.stderr


@pytest.mark.long
def test_cases_with_references_are_an_external_validation(volumes_run, tmp_path):
    """By the bundle alone; after a change of a reference, only the figures are computed again."""
    run = volumes_run.copy(tmp_path / "copy")
    bundle = bundle_of(run, "volumes.yaml", tmp_path / "bundle")
    names = ("flair", "t1", "t1gd", "t2", "segmentation")
    folders = {"N1": run.folder / "cohort/volumes/V17-1", "N2": tmp_path / "N01-1"}
    run.run(
        *("python", "scripts/make_demo_volume.py", "--case", "N01-1"),
        *("--out", str(folders["N2"])),
    )
    sheet = tmp_path / "new.tsv"

    def write_sheet(columns):
        lines = [
            "\t".join([case, f"H{case}", *(str(folder / f"{name}.nii.gz") for name in columns)])
            for case, folder in folders.items()
        ]
        sheet.write_text("\n".join(["\t".join(("case", "patient", *columns)), *lines, ""]))

    write_sheet(names)
    _, predictions = predict_with(run, bundle, tmp_path / "out", sheet)
    written = {path.name for path in (predictions / "external").iterdir()}
    assert written == {"cases.tsv", "index.html", "metrics.json"}  # as docs/outputs.md says
    measured = json.loads((predictions / "external/metrics.json").read_text())
    assert measured["metrics"]["n"] == 1 and measured["compared"]
    (left_out,) = measured["left_out"]
    assert left_out == {"id": "N1", "reason": "in the cohort: same pixels"}
    table = read_table(predictions / "external/cases.tsv")
    assert {row["case"] for row in table} == {"N2"}
    page = (predictions / "external/index.html").read_text()
    assert "1 new case or its patients are in the cohort" in page
    index = (predictions / "pages/index.html").read_text()
    assert 'href="../external/index.html"' in index

    def jobs():
        return run.jobs(
            *("--snakefile", str(run.folder / "Snakefile"), "--directory", str(tmp_path / "out")),
            *("--configfile", str(tmp_path / "out/config.yaml")),
        )

    assert jobs() == {}
    reference = folders["N2"] / "segmentation.nii.gz"
    os.utime(reference)
    assert jobs() == {}
    shutil.copy(folders["N1"] / "segmentation.nii.gz", reference)
    assert set(jobs()) == {"external", "external_page", "all"}
    before = (predictions / "segmentations/N2.nii.gz").stat()
    predict_with(run, bundle, tmp_path / "out", sheet)
    assert (predictions / "segmentations/N2.nii.gz").stat() == before
    assert json.loads((predictions / "external/metrics.json").read_text()) != measured
    assert jobs() == {}
    moved = reference.rename(tmp_path / "moved.nii.gz")
    done, _ = predict_with(run, bundle, tmp_path / "out", sheet, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"row 3: no file {reference}" in done.stderr
    moved.rename(reference)
    # Without references, there is no external validation.
    write_sheet(names[:-1])
    predict_with(run, bundle, tmp_path / "out", sheet)
    assert "no reference segmentation" in (predictions / "pages/index.html").read_text()
