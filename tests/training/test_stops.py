"""Training resumes after a signal or a lost rank, with the result of an uninterrupted one."""

import shutil
import time

import numpy as np
from trained import assert_same_bits, assert_same_to_rounding

from gigatile.errors import START_AGAIN
from gigatile.training.resuming import _distribute

PROGRAM = "tests/training/programs/at_a_moment.py"
EPOCHS = 3


def train(launcher, manifest, out, *options, **settings):
    """Train on 2 ranks, 5 steps per epoch, interrupted as the options of the program say."""
    arguments = launcher.train_arguments(manifest, out, 2, epochs=EPOCHS, **settings)
    return launcher.run(2, PROGRAM, *options, *arguments)


def assert_stopped(done, reason):
    assert done.returncode == START_AGAIN, done.stdout + done.stderr
    assert done.stderr.count("stopped by") == 1
    assert f"stopped by {reason}; the state is saved, and the same command resumes" in done.stderr
    assert "Traceback" not in done.stderr


def test_stopped_training_ends_with_the_same_model(launcher, manifest, tmp_path):
    """With batch normalisation and loss scaling: everything that must be saved."""
    uninterrupted, stopped = tmp_path / "uninterrupted", tmp_path / "stopped"
    options = {"mixed_precision": True}
    done = train(launcher, manifest, uninterrupted, "--uneven", **options)
    assert done.returncode == 0, done.stderr

    # One rank gets a signal in the middle of an epoch; all stop after the next step.
    moment = ("--moment", "in epoch 2, step 2 of 5", "--send", "SIGUSR2", "--to", 1)
    done = train(launcher, manifest, stopped, "--uneven", *moment, **options)
    assert_stopped(done, "SIGUSR2 after epoch 1 of 3, step 3 of 5")
    assert not (stopped / "segments").exists()
    with np.load(sorted((stopped / "checkpoints").iterdir())[-1]) as archive:
        sums = archive[archive.files[-1]]
    assert np.abs(sums[0] - sums[1]).max() > 1e-3, "both ranks have equal sums: nothing is tested"

    # All ranks get a signal in the last step of an epoch; they agree in the next step.
    moment = ("--moment", "in epoch 2, step 5 of 5")
    done = train(launcher, manifest, stopped, "--uneven", *moment, **options)
    assert "resuming after epoch 1 of 3, step 3 of 5" in done.stdout
    assert_stopped(done, "SIGTERM after epoch 2 of 3, step 1 of 5")

    # The rank that writes is killed after the last step, while statistics of the averaged weights
    # are computed. The other may be there before the state of the last step is written.
    killed = "computing the statistics of batch normalisation"
    moment = ("--moment", killed, "--send", "SIGKILL", "--to", 0)
    copied = tmp_path / "killed"
    shutil.copytree(stopped, copied)
    done = train(launcher, manifest, copied, "--uneven", *moment, **options)
    assert done.returncode not in (0, 2), done.stdout + done.stderr
    assert [path.name for path in (copied / "segments").iterdir()] == ["0003.npz"]
    done = train(launcher, manifest, copied, "--uneven", **options)
    assert done.returncode == 0, done.stderr
    assert "resuming after epoch 3 of 3" in done.stdout
    assert_same_bits(uninterrupted / "segments", copied / "segments")

    # A signal in the last step: training is complete before it can stop.
    moment = ("--moment", "in epoch 3, step 5 of 5")
    done = train(launcher, manifest, stopped, "--uneven", *moment, **options)
    assert done.returncode == 0, done.stderr
    assert "resuming after epoch 2 of 3, step 1 of 5" in done.stdout
    assert_same_bits(uninterrupted / "segments", stopped / "segments")
    assert not (stopped / "checkpoints").exists()


def test_stalled_rank_ends_all_and_one_rank_resumes(launcher, manifest, tmp_path):
    """As if the network were cut: rank 1 does not answer, so step 3 is not saved."""
    moment = ("--moment", "in epoch 2, step 3 of 5", "--send", "SIGSTOP", "--to", 1)
    begun = time.monotonic()
    done = train(launcher, manifest, tmp_path / "two", *moment, stall_limit=25, save_minutes=1e-6)
    assert done.returncode == START_AGAIN, done.stdout + done.stderr
    assert "rank 0 of 2 on " in done.stderr
    assert "no step finished for 25 s, last in epoch 2, step 3 of 5; another rank" in done.stderr
    assert time.monotonic() - begun < 250

    again = launcher.train(manifest, tmp_path / "two", epochs=EPOCHS)
    assert "resuming after epoch 1 of 3, step 2 of 5" in again.stdout
    launcher.train(manifest, tmp_path / "one", epochs=EPOCHS)
    assert_same_to_rounding(tmp_path / "one/segments", tmp_path / "two/segments")


def test_saved_statistics_do_not_depend_on_the_ranks(launcher, manifest, tmp_path):
    for ranks in (1, 2):
        arguments = launcher.train_arguments(manifest, tmp_path / str(ranks), ranks, epochs=1)
        done = launcher.run(ranks, PROGRAM, "--uneven", *arguments)
        assert done.returncode == 0, done.stderr
    assert_same_to_rounding(tmp_path / "1/segments", tmp_path / "2/segments")


def test_sums_are_distributed_to_another_number_of_ranks():
    sums = np.array([[1.0, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(_distribute(sums, 2), sums)
    np.testing.assert_array_equal(_distribute(sums, 1), [[5, 7, 9]])
    expected = [[5, 7, 9], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(_distribute(sums, 3), expected)
