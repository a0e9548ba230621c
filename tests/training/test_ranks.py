"""Several MPI ranks train like one rank."""

import json
import os
import time

import numpy as np
import pytest
from test_cores import tree
from trained import assert_same_bits, assert_same_to_rounding, weights

from gigatile.errors import START_AGAIN


def digests(folder):
    return {path.read_text() for path in folder.glob("rank-*")}


@pytest.fixture(scope="module")
def one_rank(launcher, manifest, tmp_path_factory):
    out = tmp_path_factory.mktemp("one-rank")
    launcher.train(manifest, out)
    return out


def test_one_and_two_ranks_reach_the_same_weights(launcher, manifest, one_rank, tmp_path):
    """75 tiles in batches of 16: two ranks share the last batch of 11 unequally."""
    launcher.train(manifest, tmp_path, ranks=2)
    assert_same_to_rounding(one_rank / "segments", tmp_path / "segments")


def test_training_is_deterministic(launcher, manifest, one_rank, tmp_path):
    launcher.train(manifest, tmp_path)
    assert_same_bits(one_rank / "segments", tmp_path / "segments")


@pytest.mark.long
def test_weights_depend_on_the_seed(launcher, manifest, one_rank, tmp_path):
    launcher.train(manifest, tmp_path, seed=2)
    pairs = zip(weights(one_rank / "segments"), weights(tmp_path / "segments"), strict=True)
    assert any(np.abs(first - second).max() > 1e-3 for first, second in pairs)


@pytest.mark.long
def test_boosted_label_makes_the_epoch_longer(launcher, manifest, tmp_path):
    """25 tiles of each of three labels, one label shown twice: 7 steps of 16, not 5."""
    done = launcher.train(manifest, tmp_path, epochs=1, boost={"coarse": 2.0})
    assert "75 tiles of 3 classes, 7 steps of 16 tiles per epoch" in done.stdout
    done = launcher.train(manifest, tmp_path, check=False, boost={"course": 2.0})
    assert done.returncode == 2
    assert "train.boost: no such label: course; the cohort has coarse, fine, plain" in done.stderr
    rare = dict.fromkeys(("coarse", "fine", "plain"), 0.001)
    done = launcher.train(manifest, tmp_path / "rare", check=False, boost=rare)
    assert (done.returncode, "no tile is left in epoch 1" in done.stderr) == (2, True), done.stderr


@pytest.mark.long
def test_ranks_on_different_data_keep_equal_weights(launcher, tmp_path):
    """Initial weights, batches and cores differ between the ranks."""
    cpus = sorted(os.sched_getaffinity(0))
    half = len(cpus) // 2
    nodes = [",".join(map(str, part)) for part in (cpus[:half], cpus[half:]) if part]
    done = launcher.run(
        2,
        "tests/training/programs/ranks_agree.py",
        tmp_path,
        *("--reduce", "operations", "--tree", tree(tmp_path / "nodes", *nodes)),
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("rank-*"))) == 2
    assert len(digests(tmp_path)) == 1

    cores = [json.loads((tmp_path / f"cores-{rank}").read_text()) for rank in (0, 1)]
    if half:
        where = [str(set(part)) for part in (cpus[:half], cpus[half:])]
        assert [rank["cpus"] for rank in cores] == [[cpus] for cpus in where]
    for rank in cores:
        assert rank["threads"] == max(1, min(8, half)), "only its share of 8 cores"


def test_broken_horovod_wrapper_would_be_detected(launcher, tmp_path):
    """With Keras 3, Horovod's optimizer wrapper reduces nothing, without an error."""
    done = launcher.run(
        2, "tests/training/programs/ranks_agree.py", tmp_path, "--reduce", "wrapper"
    )
    assert done.returncode == 0, done.stderr
    assert len(digests(tmp_path)) == 2


def test_wrong_number_of_ranks_is_refused(launcher, manifest, tmp_path):
    arguments = launcher.train_arguments(manifest, tmp_path, ranks=4)
    done = launcher.run(2, "scripts/train.py", *arguments)
    assert done.returncode == 2
    message = "the launcher started 2 process(es), but train.nodes x train.ranks_per_node is 4"
    assert f"error (rank 0 of 2 on {os.uname().nodename}): {message}" in done.stderr
    assert done.stderr.count(message) == 1, "an error of all ranks is printed once"
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "segments").exists()


@pytest.mark.parametrize(
    ("how", "status", "line"),
    [
        ("bug", 1, "a bug (rank 1 of 2 on {host}):\nTraceback (most recent call last)"),
        ("mistake", 2, "error (rank 1 of 2 on {host}): rank 1 has read nonsense\n"),
        ("kill", 128 + 9, "exited on\nsignal 9"),
        ("leave", START_AGAIN, "stopped (rank 0 of 2 on {host}): another rank ended; see its"),
    ],
)
def test_exit_of_one_rank_ends_all(launcher, how, status, line):
    """Rank 0 waits in a collective and must not hang; the status is that of rank 1."""
    start = time.monotonic()
    done = launcher.run(2, "tests/training/programs/one_rank_fails.py", how)
    assert line.format(host=os.uname().nodename) in done.stderr
    assert done.returncode == status
    assert done.stderr.count("Traceback") == (how == "bug")
    assert time.monotonic() - start < 50, "the limit of Horovod and of the watchdog is 60 s"
