"""Inputs and resources of the rules."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.io import is_flagged

from gigatile.settings.shards import ShardSettings
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.workflow.inputs import (
    case_options,
    large_files,
    previous_segment,
    slide_options,
    small_files,
    source_files,
)
from gigatile.workflow.resources import (
    grow,
    launch_options,
    mpi_resources,
    rank_options,
    tiling_options,
)


class Wildcards(tuple):
    """The values of wildcards, by position and by name."""

    def __new__(cls, **values):
        wildcards = super().__new__(cls, values.values())
        vars(wildcards).update(values)
        return wildcards


FILES = ["model/model.keras", "model/history.tsv", "model/settings.json", "tiles.parquet"]


def test_large_files_are_ancient_and_the_others_compared():
    assert small_files(FILES) == ["model/history.tsv", "model/settings.json"]
    large = large_files(FILES[:2], FILES[2:])
    assert large == ["model/model.keras", "tiles.parquet"]
    assert all(is_flagged(file, "ancient") for file in large)


def test_first_segment_has_no_previous_one():
    previous = previous_segment("run/segments", ["0004", "0008"], "json")
    assert previous(Wildcards(epoch="0004")) == []
    assert previous(Wildcards(epoch="0008")) == "run/segments/0004.json"


def test_state_of_the_previous_segment_is_ancient():
    state = previous_segment("run/segments", ["0004", "0008"], "npz")(Wildcards(epoch="0008"))
    assert state == "run/segments/0004.npz" and is_flagged(state, "ancient")


def test_source_files_have_normal_paths():
    """Snakemake warns of others."""
    samples = {"S1": SimpleNamespace(files=[Path("cohort/../slides/S1.svs")])}
    assert source_files(samples)(Wildcards(slide="S1")) == ["slides/S1.svs"]


@pytest.mark.parametrize(("mpp", "options"), [(None, ""), (0.25, "--mpp 0.25")])
def test_resolution_of_the_sheet_is_an_option(mpp, options):
    samples = {"S1": SimpleNamespace(mpp=mpp)}
    assert slide_options(samples)(Wildcards(slide="S1")) == options


@pytest.mark.parametrize("segmentation", [None, Path("s g.nii.gz")])
def test_files_of_a_case_are_options(segmentation):
    images = {"t1": Path("a/../t1.nii.gz"), "t2": Path("t 2.nii.gz")}
    cases = {"V1": SimpleNamespace(images=images, segmentation=segmentation)}
    expected = "--image=t1=t1.nii.gz '--image=t2=t 2.nii.gz'"
    if segmentation:
        expected += " '--segmentation=s g.nii.gz'"
    assert case_options(cases)(Wildcards(case="V1")) == expected


def test_memory_doubles_with_each_attempt():
    assert [grow(500)(None, attempt) for attempt in (1, 2, 3)] == [500, 1000, 2000]


@pytest.mark.parametrize(
    ("nodes", "ranks_per_node", "expected"),
    [
        (1, 1, {"mpi": ""}),
        (3, 1, {"mpi": "yes", "nodes": 3, "tasks": 3}),
        (3, 4, {"mpi": "yes", "nodes": 3, "tasks_per_node": 4}),
    ],
)
def test_slurm_tasks_follow_the_layout(nodes, ranks_per_node, expected):
    layout = ShardSettings(nodes=nodes, ranks_per_node=ranks_per_node)
    assert mpi_resources(layout) == expected
    assert launch_options(layout) == f"--nodes {nodes} --ranks-per-node {ranks_per_node} --cores 1"


def test_rank_options_are_those_that_do_not_change_the_model():
    train = TrainSettings(nodes=2, ranks_per_node=4, cores_per_rank=3)
    assert rank_options(train) == (
        f"--ranks 8 --cores 3 --stall-limit {train.stall_limit} --save-minutes {train.save_minutes}"
        f" --cache-gb {train.cache_gb}"
    )
    assert rank_options(TrainSettings(validate_steps=20)).endswith(" --validate-steps 20")


def test_tiling_options_are_those_that_do_not_change_tiles():
    assert tiling_options(TileSettings(stall_minutes=2.5)) == "--stall-minutes 2.5"
    assert tiling_options(TileSettings(copy_first=True)).endswith(" --copy-first")
