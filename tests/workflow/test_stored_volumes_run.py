"""A cohort of volumes in a real object store, run as a user runs it."""

import shutil

import obstore
import pytest
from clones import Clone

ASKED = ("--configfile", "volumes.yaml")


@pytest.fixture
def remote_volumes(volumes_run: Clone, store, tmp_path) -> Clone:
    """Return a copy of the finished run; its sheet has addresses, also of segmentations."""
    run = volumes_run.copy(tmp_path / "run")
    store.move_cohort(run.folder / "cohort/cases.tsv", "brains")
    return run


@pytest.mark.long
def test_volumes_in_a_store_give_the_same_results(volumes_run: Clone, remote_volumes: Clone, store):
    """Bad cases have the same reasons. Later the run is current, until an object is replaced."""
    run = remote_volumes
    shutil.rmtree(run.folder / "results/small/volumes")
    shutil.rmtree(run.folder / "results/small/evaluation")
    planned = run.run("python", "scripts/plan.py", *ASKED)
    assert "in object stores: 9 of 9 cases to prepare, 0.0 GB\n" in planned.stdout
    run.snakemake("--cores", "2", *ASKED)
    there, here = (each.folder / "results/small" for each in (volumes_run, run))
    names = [f"volumes/{path.name}" for path in sorted((there / "volumes").iterdir())]
    for name in (*names, "cases.tsv", "evaluation/cases.tsv", "evaluation/metrics.json"):
        assert (here / name).read_bytes() == (there / name).read_bytes(), name
    assert run.jobs(*ASKED) == {}

    key = "brains/volumes/V01-1/flair.nii.gz"
    whole = obstore.get(store.bucket(), key).bytes().to_bytes()
    store.put(key, whole)
    assert run.jobs(*ASKED) == {}
    store.put(key, whole + b"\0")
    assert run.jobs(*ASKED, "--until", "collect") == {"prepare": 1, "collect": 1}
    store.put(key, whole)
    assert run.jobs(*ASKED) == {}
    # When the group starts again; last, as it leaves no metadata.
    run.repeat_jobs("prepare:case=V01-1", settings="volumes.yaml")
    assert "done before" in (run.folder / "results/small/logs/prepare/V01-1.log").read_text()
    checked = run.run("gigatile", "check", "volumes.yaml")
    assert "9 cases in a store: their headers are not checked" in checked.stdout


def test_missing_volumes_are_one_message(remote_volumes: Clone, store):
    for name in ("V01-1/t1", "V17-1/segmentation"):
        obstore.delete(store.bucket(), f"brains/volumes/{name}.nii.gz")
    done = remote_volumes.snakemake("-n", *ASKED, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "Traceback" not in said
    assert "cohort/cases.tsv: 2 fault(s)" in said
    for name in ("V01-1/t1", "V17-1/segmentation"):
        assert f"s3://slides/brains/volumes/{name}.nii.gz: no such object" in said
