"""The whole workflow on volumes, as a user runs it."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nibabel
import numpy as np
import pytest
from clones import Clone
from opened import check_declared
from small_volumes import BAD, COHORT, volume_settings

from gigatile.files import read_json
from gigatile.tables import read_table

ASKED = ("--cores", "2", "--configfile", "volumes.yaml")
# Outputs that are equal in all runs.
SAME = (
    *("volumes/*", "shards/*", "segments/*.keras", "model/model.keras", "*.tsv"),
    *("evaluation/*.tsv", "evaluation/segmentations/*", "evaluation/metrics.json"),
    *("report/index.html", "report/cases/*"),
)


def digests(run: Clone) -> dict[str, str]:
    folder = run.folder / "results/small"
    paths = [path for pattern in SAME for path in folder.glob(pattern) if path.is_file()]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def test_each_case_has_a_state_and_the_run_continues(volumes_run):
    run = volumes_run.folder / "results/small"
    rows = {row["case"]: row for row in read_table(run / "cases.tsv")}
    assert set(rows) == {case for cases in COHORT.values() for case in cases}
    assert {case for case, row in rows.items() if row["state"] == "failed"} == BAD
    assert all(rows[case]["reason"] for case in BAD)
    scored = {row["case"] for row in read_table(run / "evaluation/cases.tsv")}
    assert scored == {"V17-1", "V18-1"}
    assert read_json(run / "evaluation/metrics.json")["n"] == 2
    pages = {path.name for path in (run / "report/cases").glob("*.html")}
    assert pages == {"V17-1.html", "V18-1.html"}
    assert (run / "evaluation/segmentations/V22-1.nii.gz").stat().st_size == 0
    assert volumes_run.jobs("--configfile", "volumes.yaml") == {}


def test_segmentation_has_the_grid_of_its_case(volumes_run):
    for case in ("V17-1", "V18-1"):
        predicted = nibabel.load(
            volumes_run.folder / f"results/small/evaluation/segmentations/{case}.nii.gz"
        )
        reference = nibabel.load(volumes_run.folder / f"cohort/volumes/{case}/segmentation.nii.gz")
        assert predicted.shape == reference.shape
        np.testing.assert_allclose(predicted.affine, reference.affine, atol=1e-5)
        assert set(np.unique(np.asanyarray(predicted.dataobj))) <= {0, 1, 2, 3}


@pytest.mark.long
def test_run_in_another_folder_gives_the_same_bytes(volumes_run, tmp_path):
    other = volumes_run.copy(tmp_path)
    shutil.rmtree(other.folder / "results")
    other.snakemake(*ASKED)
    assert digests(other) == digests(volumes_run)


def test_verify_finds_a_damaged_segmentation(volumes_run, tmp_path):
    copy = volumes_run.copy(tmp_path)
    done = copy.snakemake("verify", *ASKED)
    assert "all files are current and undamaged" in done.stdout
    path = copy.folder / "results/small/evaluation/segmentations/V17-1.nii.gz"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    done = copy.snakemake("verify", *ASKED, check=False)
    assert done.returncode == 1
    assert re.search(r"damaged +segment: .*V17-1\.nii\.gz", done.stdout + done.stderr)


@pytest.mark.long
def test_group_that_starts_again_processes_only_what_it_lacks(volumes_run, tmp_path):
    copy = volumes_run.copy(tmp_path)
    run = copy.folder / "results/small"
    jobs = ["prepare:case=V01-1", "prepare:case=V02-1", "segment:case=V17-1", "segment:case=V18-1"]
    logs = [run / "logs" / job.replace(":case=", "/") for job in jobs]
    logs = [path.with_name(f"{path.name}.log") for path in logs]

    def repeated() -> list[str]:
        """Return the names of the cases that were processed."""
        for path in logs:
            path.unlink(missing_ok=True)
        copy.repeat_jobs(*jobs, settings="volumes.yaml")
        return [
            f"{path.parent.name} {path.stem}"
            for path in logs
            if "done before" not in path.read_text()
        ]

    before = digests(copy)
    files = [run / "volumes/V01-1.tfrecord", run / "evaluation/segmentations/V17-1.nii.gz"]
    inodes = [path.stat().st_ino for path in files]
    assert repeated() == []
    assert [path.stat().st_ino for path in files] == inodes
    # One lacks its record, the other its output.
    for path in run.glob("provenance/prepare*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    files[1].unlink()
    assert repeated() == ["prepare V01-1", "prepare V02-1", "segment V17-1"]
    # A modality is replaced by another file of the same size, and the settings of the model.
    image = copy.folder / "cohort/volumes/V02-1/t1.nii.gz"
    saved, content = image.read_bytes(), bytearray(image.read_bytes())
    content[9] ^= 2  # of the header of gzip, which changes no voxel
    image.write_bytes(content)
    model = run / "model/settings.json"
    kept = model.read_bytes()
    model.write_bytes(kept + b"\n")
    assert repeated() == ["prepare V02-1", "segment V17-1", "segment V18-1"]
    model.write_bytes(kept)
    image.write_bytes(saved)
    assert repeated() == ["prepare V02-1", "segment V17-1", "segment V18-1"]
    assert repeated() == []
    assert digests(copy) == before
    done = copy.snakemake(
        *ASKED, "--force", *(str(path.relative_to(copy.folder)) for path in files)
    )
    assert "done before" not in logs[0].read_text() + logs[2].read_text(), done.stdout


def test_job_that_was_done_when_snakemake_was_killed_is_not_repeated(volumes_run, tmp_path):
    copy = volumes_run.copy(tmp_path)
    run = copy.folder / "results/small"
    output, log = "evaluation/segmentations/V17-1", run / "logs/segment/V17-1.log"
    shutil.copytree(run, tmp_path / "done")
    (run / f"{output}.nii.gz").unlink()
    (run / "provenance/segment/V17-1.json").unlink()
    log.unlink()
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "snakemake"), *ASKED],
        cwd=copy.folder,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not log.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=True)
    process.wait()
    while (
        subprocess.run(["pgrep", "-s", str(process.pid)], stdout=subprocess.DEVNULL).returncode == 0
    ):
        time.sleep(0.02)
    shutil.rmtree(run)
    (tmp_path / "done").rename(run)  # as if the job had ended just before
    shutil.rmtree(copy.folder / ".snakemake/locks")
    copy.snakemake(f"results/small/{output}.nii.gz", *ASKED)
    assert "done before" in log.read_text()


def test_new_cases_are_segmented(volumes_run, tmp_path):
    """With reference segmentations, they are evaluated, too."""
    copy = volumes_run.copy(tmp_path)
    copy.run(
        *("python", "scripts/make_demo_volume.py", "--case", "N01-1"),
        *("--out", "cohort/volumes/N01-1"),
    )
    columns = ("flair", "t1", "t1gd", "t2", "segmentation")
    rows = [("case", "patient", *columns)]
    for number, case in enumerate(("V17-1", "V04-2", "N01-1"), 1):
        files = (f"cohort/volumes/{case}/{name}.nii.gz" for name in columns)
        rows.append((f"N{number}", f"H{number}", *files))
    copy.write("new.tsv", "".join("\t".join(row) + "\n" for row in rows))
    copy.write("volumes.yaml", volume_settings() + "predict: {samples: new.tsv}\n")
    done = copy.traced(*ASKED)
    assert "rule train:" not in done.stdout + done.stderr
    predicted = ("prepare_new", "collect_new", "segment_new", "prediction_pages")
    check_declared(copy, *predicted, "external", "external_page")
    run = copy.folder / "results/small"
    segmentation = run / "predictions/segmentations/N1.nii.gz"
    # The same case and the same model.
    assert segmentation.read_bytes() == (run / "evaluation/segmentations/V17-1.nii.gz").read_bytes()
    by_case = {row["case"]: row for row in read_table(run / "predictions/cases.tsv")}
    assert by_case["N1"]["state"] == "prepared"
    assert "its gzip is truncated" in by_case["N2"]["reason"]
    (match,) = read_table(run / "predictions/in_cohort.tsv")
    assert (match["case"], match["in_cohort"]) == ("N1", "V17-1")
    assert (match["same"], match["equal_images"]) == ("pixels", "4")
    page = (run / "predictions/pages/cases/N1.html").read_text()
    assert "This case is in the cohort." in page
    measured = json.loads((run / "predictions/external/metrics.json").read_text())
    assert measured["metrics"]["n"] == 1 and measured["compared"]
    left_out = {item["id"]: item["reason"] for item in measured["left_out"]}
    assert left_out["N1"] == "in the cohort: same pixels"
    assert "its gzip is truncated" in left_out["N2"]


def test_plan_needs_no_volumes(volumes_run, tmp_path):
    copy = volumes_run.copy(tmp_path)
    shutil.rmtree(copy.folder / "cohort/volumes")
    asked = ("--configfile", "volumes.yaml", "--config", "slides=elsewhere")
    assert copy.jobs(*asked) == {}
    done = copy.snakemake("-n", *asked, "volumes={spacing: [6, 6, 6]}")
    assert "45 of 45 files are not on this machine" in done.stderr
    done = copy.snakemake("-n", "--configfile", "volumes.yaml", check=False)
    assert "row 2: no file cohort/volumes/V01-1/flair.nii.gz" in done.stdout + done.stderr


def test_labels_must_agree_with_those_of_the_data_set(small_volumes, tmp_path):
    """In the Decathlon, label 2 is non-enhancing; other settings would train on another tissue."""
    copy = small_volumes.copy(tmp_path)
    shutil.copytree(copy.folder / "cohort/volumes", copy.folder / "task/labelsTr")
    sheet = copy.folder / "cohort/cases.tsv"
    moved = sheet.read_text().replace("volumes/V01-1/seg", "../task/labelsTr/seg")
    for path in (copy.folder / "task/labelsTr/V01-1").iterdir():
        path.rename(copy.folder / "task/labelsTr" / path.name)
    sheet.write_text(moved)
    labels = {"0": "background", "1": "edema", "2": "enhancing", "3": "non-enhancing"}
    declared = {"modality": {"0": "FLAIR"}, "labels": labels}
    copy.write("task/dataset.json", json.dumps(declared))
    done = copy.snakemake("-n", "--configfile", "volumes.yaml", check=False)
    assert done.returncode == 1
    assert "'enhancing' is 3 in volumes.labels, but 2 there" in done.stdout + done.stderr
    labels |= {"2": "non-enhancing tumor", "3": "enhancing tumour"}
    copy.write("task/dataset.json", json.dumps(declared))
    copy.snakemake("-n", "--configfile", "volumes.yaml")


def test_settings_of_the_other_task_are_errors(small_volumes):
    for wrong, message in (
        (
            "train={model: small_cnn}",
            "for task: volume_segmentation it must be small_unet or unet or",
        ),
        (
            "train={model: unet, boost: {a: 2}}",
            "train.boost: not used by task: volume_segmentation; remove it",
        ),
        ("task=tile_classification", "for task: tile_classification it must be small_cnn or"),
        ("patches={size: [20, 16, 16]}", "must be three multiples of 8"),
        (
            "volumes={regions: {core: [necrosis]}}",
            "regions: core has 'necrosis', which is not a label",
        ),
    ):
        done = small_volumes.snakemake(
            "-n", "--configfile", "volumes.yaml", "--config", wrong, check=False
        )
        assert done.returncode == 1 and message in done.stdout + done.stderr, wrong


def test_prepared_cases_of_another_run_are_linked(volumes_run, tmp_path):
    copy = volumes_run.copy(tmp_path)
    settings = volume_settings().replace("run: small", "run: second\nreuse: small")
    copy.write("second.yaml", settings)
    copy.snakemake("results/second/cases.tsv", "--cores", "2", "--configfile", "second.yaml")
    logs = copy.folder / "results/second/logs"
    packed = (logs / "prepare.log").read_text()
    for case in {case for cases in COHORT.values() for case in cases}:
        log = packed.partition(f"==> {case}.log <==\n")[2].partition("\n\n")[0]
        if case in BAD:
            log = (logs / f"prepare/{case}.log").read_text()
        for suffix in ("tfrecord", "json"):
            first, second = (
                copy.folder / f"results/{run}/volumes/{case}.{suffix}"
                for run in ("small", "second")
            )
            assert first.samefile(second) == (case not in BAD), case
        said = "it failed there" if case in BAD else "reused from results/small"
        assert said in log
    # Other volumes: nothing is linked.
    copy.write("second.yaml", settings.replace("[5, 5, 5]", "[6, 6, 6]"))
    case_again = "results/second/volumes/V01-1.json"
    copy.snakemake(case_again, "--cores", "1", "--configfile", "second.yaml")
    assert not (copy.folder / case_again).samefile(copy.folder / "results/small/volumes/V01-1.json")
