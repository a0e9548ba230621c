"""Plans on a machine with the sheet and without the slides."""

import shutil

import pytest
from clones import Clone

ASKED = ("--configfile", "small.yaml", "--config", "slides=elsewhere")


@pytest.fixture
def laptop(copied_run: Clone) -> Clone:
    """Return a copy of the run without its slides."""
    for slide in (copied_run.folder / "cohort").glob("*.svs"):
        slide.unlink()
    return copied_run


def test_plan_lists_the_missing_slides(laptop):
    """Existing results stay current, and the plan creates no files."""
    done = laptop.snakemake("-n", "--configfile", "small.yaml", check=False)
    assert done.returncode == 1 and "row 2: no file cohort/P01-1.svs" in done.stdout + done.stderr
    assert laptop.jobs(*ASKED) == {}
    changed = {"evaluate", "calibration", "report", "all"}
    assert set(laptop.jobs(*ASKED, "evaluate={seed: 9}")) == changed
    tiled = laptop.jobs(*ASKED, "tiles={size: 64}")
    assert (tiled["tile"], tiled["slides_elsewhere"]) == (12, 1)
    shutil.rmtree(laptop.folder / "results")
    with (laptop.folder / "cohort/samples.tsv").open("a") as sheet:
        sheet.write("folder\tN1\tluad\tscans/folder\ttest\nhere\tN2\tluad\there.svs\ttest\n")
    (laptop.folder / "cohort/here.svs").write_text("a slide")
    done = laptop.snakemake("-n", *ASKED)
    assert "13 of 14 files are not on this machine" in done.stderr
    assert done.stdout.count("rule tile:") == 14
    assert [p.name for p in (laptop.folder / "cohort").glob("*.svs")] == ["here.svs"]


@pytest.mark.long
def test_stages_without_slides_run(laptop):
    laptop.snakemake("--cores", "2", *ASKED, "evaluate={seed: 9, resamples: 1000}")
    assert laptop.jobs(*ASKED, "evaluate={seed: 9, resamples: 1000}") == {}
    done = laptop.snakemake("--cores", "2", *ASKED, "tiles={size: 64}", check=False)
    assert done.returncode == 1
    assert "is not on this machine; run this job where it is" in done.stdout + done.stderr
    done = laptop.snakemake("verify", "--cores", "1", *ASKED, "evaluate={seed: 9, resamples: 1000}")
    assert "all files are current and undamaged" in done.stdout


def test_existing_slides_are_never_deleted(copied_run):
    """Snakemake deletes the outputs of a job before it starts."""
    slides = sorted((copied_run.folder / "cohort").glob("*.svs"))
    slides.pop().unlink()
    before = [slide.read_bytes() for slide in slides]
    for asked in (("--forceall", "--keep-going", "--until", "tile"), ("--delete-all-output",)):
        copied_run.snakemake("--cores", "2", *asked, *ASKED, check=False)
        assert [slide.read_bytes() for slide in slides] == before


def test_slides_elsewhere_is_the_only_value(small_cohort):
    done = small_cohort.snakemake("-n", "--config", "slides=somewhere", check=False)
    assert done.returncode == 1 and "slides: no such key" in done.stdout + done.stderr
