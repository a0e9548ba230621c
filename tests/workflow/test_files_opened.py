"""No command reads a file that its rule does not declare: its changes would rerun nothing."""

import pytest
from clones import Clone
from opened import check_declared, jobs_of
from small_cohort import COHORT, small_settings

SHARED = (
    *("split_patients", "collect", "collect_training", "write_shards"),
    *("train", "validate", "choose_model", "evaluate", "report"),
)


def test_commands_read_declared_files_only(small_run):
    figures = ("evaluate_valid", "operating_points", "calibration")
    check_declared(small_run, "tile", *SHARED, *figures)


def test_thresholds_are_chosen_without_any_test_slide(small_run):
    """Not even the table of the cohort, which has the test labels, is read."""
    jobs = {job.rule: job for job in jobs_of(small_run.folder, small_run.trace)}
    for rule in ("evaluate_valid", "operating_points"):
        read = {path for path in jobs[rule].read if path.startswith(("results/", "cohort/"))}
        assert read, rule
        of_test = [path for path in read for slide in COHORT["test"] if slide in path]
        assert of_test == []
        assert not read & {"results/small/tiles.tsv", "results/small/splits.tsv"}
        assert not any(path.startswith("results/small/evaluation") for path in read)
        assert not any(path.startswith("cohort/") for path in read)
    assert any("evaluation/slides.tsv" in path for path in jobs["calibration"].read)


def test_training_reads_only_its_earlier_segment(small_run: Clone, tmp_path):
    """The state of the earlier segment is an input that Snakemake does not compare by content."""
    copy = small_run.copy(tmp_path / "copy")
    copy.write(
        "small.yaml",
        small_settings("ranks_per_node: 1, epochs: 2, segment_epochs: 1, batch_size: 32"),
    )
    copy.traced("results/small/segments/0002.keras", "--cores", "1", "--configfile", "small.yaml")
    check_declared(copy, "train")
    assert any("segments/0001.npz" in path.read_text() for path in copy.trace.iterdir())


def test_demo_commands_read_declared_files_only(clone):
    clone.traced("demo/slides/P01-1.svs", "--cores", "1")
    volumes = ("demo/volumes/V01-1/flair.nii.gz", "--configfile", "demo/volumes.yaml")
    clone.traced(*volumes, "--cores", "1")
    check_declared(clone, "demo_slide", "demo_case")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            "    args = parser.parse_args()",
            '    Path("Makefile").read_text()\n    args = parser.parse_args()',
            "split_patients reads Makefile: no input of its rule",
        ),
        (
            "    args = parser.parse_args()",
            '    __import__("openslide").OpenSlide.detect_format("small.yaml")\n'
            "    args = parser.parse_args()",
            "split_patients reads small.yaml: no input of its rule",
        ),
        (
            "    args = parser.parse_args()",
            '    __import__("subprocess").run(["cat", "docs/splits.md"])\n'
            "    args = parser.parse_args()",
            "split_patients reads docs/splits.md: no input of its rule",
        ),
        (
            "    args = parser.parse_args()",
            '    list(Path("cohort").iterdir())\n    args = parser.parse_args()',
            "split_patients reads cohort/: a listing of a folder",
        ),
    ],
    ids=["Python", "C", "another program", "a folder"],
)
def test_undeclared_file_is_detected(small_cohort: Clone, tmp_path, old: str, new: str, fault: str):
    copy = small_cohort.copy(tmp_path / "copy")
    path = copy.folder / "scripts/split_patients.py"
    path.write_text(path.read_text().replace(old, new))
    copy.traced("results/small/splits.tsv", "--cores", "1", "--configfile", "small.yaml")
    with pytest.raises(AssertionError, match=fault):
        check_declared(copy, "split_patients")
