"""Several real MPI ranks train as one."""

import keras
import numpy as np
import pytest


def weights(out):
    return keras.models.load_model(out / "model" / "model.keras", compile=False).get_weights()


def digests(folder):
    return {path.read_text() for path in folder.glob("rank-*")}


@pytest.fixture(scope="module")
def one_rank(launcher, manifest, tmp_path_factory):
    out = tmp_path_factory.mktemp("one-rank")
    launcher.train(manifest, out)
    return out


def test_one_and_two_ranks_reach_the_same_weights(launcher, manifest, one_rank, tmp_path):
    """75 tiles in batches of 16 leave a last batch of 11, which two ranks share unequally."""
    launcher.train(manifest, tmp_path, ranks=2)
    for one, two in zip(weights(one_rank), weights(tmp_path), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=2e-5)
    alone, together = (
        np.loadtxt(out / "model" / "history.tsv", skiprows=1) for out in (one_rank, tmp_path)
    )
    np.testing.assert_allclose(alone, together, atol=2e-4)


def test_the_same_training_twice_gives_the_same_bits(launcher, manifest, one_rank, tmp_path):
    launcher.train(manifest, tmp_path)
    for one, again in zip(weights(one_rank), weights(tmp_path), strict=True):
        np.testing.assert_array_equal(one, again)
    history = "model/history.tsv"
    assert (one_rank / history).read_bytes() == (tmp_path / history).read_bytes()


def test_another_seed_gives_other_weights(launcher, manifest, one_rank, tmp_path):
    launcher.train(manifest, tmp_path, seed=2)
    pairs = zip(weights(one_rank), weights(tmp_path), strict=True)
    assert any(np.abs(one - other).max() > 1e-3 for one, other in pairs)


def test_ranks_on_different_data_keep_equal_weights(launcher, tmp_path):
    """They start from different weights, too, and get different batches."""
    done = launcher.run(
        2, "tests/training/programs/ranks_agree.py", tmp_path, "--reduce", "operations"
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.iterdir())) == 2
    assert len(digests(tmp_path)) == 1


def test_the_check_above_finds_a_wrapper_that_reduces_nothing(launcher, tmp_path):
    """Horovod's optimizer wrapper and Keras 3: no error, and no reduction either."""
    done = launcher.run(
        2, "tests/training/programs/ranks_agree.py", tmp_path, "--reduce", "wrapper"
    )
    assert done.returncode == 0, done.stderr
    assert len(digests(tmp_path)) == 2


def test_a_launch_with_another_number_of_ranks_is_refused(launcher, manifest, tmp_path):
    arguments = launcher.train_arguments(manifest, tmp_path, ranks=4)
    done = launcher.run(2, "scripts/train.py", *arguments)
    assert done.returncode != 0
    assert "started as 2 process(es), but train.ranks is 4" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "model").exists()


def test_an_error_on_one_rank_ends_all(launcher, manifest, tmp_path):
    """Rank 1 leaves in the middle; rank 0 waits for it in a collective and must not wait on."""
    done = launcher.run(2, "tests/training/programs/one_rank_fails.py")
    assert done.returncode != 0
    assert "rank 1 has had enough" in done.stderr
