"""Training resumes from checkpoints and segments, with the result of an uninterrupted one."""

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from clones import ROOT
from trained import assert_same_bits

from gigatile.settings.train import TrainSettings
from gigatile.training import checkpoints
from gigatile.training.checkpoints import (
    Checkpoint,
    TrainingState,
    checkpoints_by_step,
    checkpoints_by_time,
    first_usable,
    save_checkpoint,
    write_checkpoint,
)
from gigatile.training.resuming import Checkpoints
from gigatile.training.segments import Segment

EPOCHS = 6
# Interruptions of the run.
STRIKES = 8
# A recipe in which each step has another learning rate.
RECIPE = {
    "optimizer": "sgd",
    "nesterov": True,
    "accumulate": 2,
    "learning_rate": 0.05,
    "schedule": "polynomial",
    "decay_epochs": [EPOCHS],
    "warmup_steps": 5,
    "weight_decay": 1e-4,
    "clip_norm": 1.0,
    "tiles_per_slide": 18,
    "augmentation": {"stain": 0.1, "noise": 5, "cutout": 0.3, "mixup": 0.3},
}
LAMB = {"optimizer": "lamb", "schedule": "cosine", "weight_decay": 0.01, "average": False}
LAMB |= {"freeze_epochs": 2, "backbone_rate": 0.3, "loss": "focal", "balance": "epoch"}


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2])
def test_killed_training_ends_with_the_same_model(launcher, manifest, tmp_path, ranks):
    """Two ranks save after every step, one rank after every epoch.

    The killed training also validates within an epoch, which changes nothing.
    """
    minutes = {1: 10, 2: 1e-6}[ranks]
    recipe = {1: LAMB, 2: RECIPE}[ranks]
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    launcher.train(manifest, uninterrupted, ranks, epochs=EPOCHS, **recipe)

    arguments = launcher.train_arguments(
        *(manifest, killed, ranks),
        **(recipe | {"epochs": EPOCHS, "save_minutes": minutes, "validate_steps": 3}),
    )
    process = subprocess.Popen(
        launcher.command(ranks, "scripts/train.py", *arguments),
        env=launcher.environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 200
    while not list((killed / "checkpoints").glob("step-*.npz")):
        assert process.poll() is None and time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.05)
    # Each rank has its own process group; the session contains all.
    subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=True)
    process.communicate(timeout=60)
    while (
        subprocess.run(["pgrep", "-s", str(process.pid)], stdout=subprocess.DEVNULL).returncode == 0
    ):
        assert time.monotonic() < deadline, "a rank is still running"
        time.sleep(0.05)
    assert not (killed / "segments").exists()

    again = launcher.train(manifest, killed, ranks, epochs=EPOCHS, validate_steps=3, **recipe)
    assert "resuming after epoch" in again.stdout
    assert_same_bits(uninterrupted / "segments", killed / "segments")
    assert not (killed / "checkpoints").exists()


def test_segments_end_with_the_model_of_one_training(launcher, manifest, tmp_path):
    """Each segment resumes from the one before, and skips those of another training."""
    launcher.train(manifest, tmp_path / "one", epochs=3, **RECIPE)
    for epochs, line in ((1, ""), (3, "resuming after epoch 1 of 3")):
        assert line in launcher.train(manifest, tmp_path / "two", epochs=epochs, **RECIPE).stdout
    assert_same_bits(tmp_path / "one/segments", tmp_path / "two/segments")
    assert sorted(path.name for path in (tmp_path / "two/segments").iterdir()) == [
        f"{epoch}.{suffix}" for epoch in ("0001", "0003") for suffix in ("json", "keras", "npz")
    ]
    for other in ({"seed": 2}, {"code": "edited"}):
        done = launcher.train(manifest, tmp_path / "two", epochs=1, **(RECIPE | other))
        assert done.stdout.count("made with other settings, data or code; skipped") == 1
        assert "resuming" not in done.stdout


def save(folder, step, *arrays, key="key", epoch=0, of_epoch=0):
    state = TrainingState(epoch=epoch, step=of_epoch, done=step, history=[])
    save_checkpoint(folder, step, Checkpoint(key, state, arrays))


def usable(folder, key="key", epochs=99, warn=pytest.fail):
    return first_usable(checkpoints_by_step(folder), key, epochs, warn)


def position(checkpoint):
    return checkpoint.state.epoch, checkpoint.state.step


def test_latest_usable_checkpoint_is_resumed(tmp_path):
    warnings = []
    for step in (1, 2, 3):
        save(tmp_path, step, np.full(9, step, np.float32), epoch=step, of_epoch=step % 2)
    latest = usable(tmp_path)
    assert (position(latest), latest.arrays[0].tolist()) == ((3, 1), [3.0] * 9)
    assert position(usable(tmp_path, epochs=3)) == (2, 0), "step 3 is beyond the end"
    assert position(usable(tmp_path, epochs=2)) == (2, 0)
    assert usable(tmp_path, epochs=1) is None

    newest = tmp_path / "step-000000003.npz"
    damaged = bytearray(newest.read_bytes())
    damaged[damaged.index(np.full(9, 3, np.float32).tobytes())] ^= 1
    newest.write_bytes(damaged)
    older = usable(tmp_path, warn=warnings.append)
    assert (older.state.epoch, older.arrays[0].tolist()) == (2, [2.0] * 9)
    assert len(warnings) == 1 and newest.name in warnings[0] and "damaged" in warnings[0]

    newest.write_bytes(newest.read_bytes()[:100])
    assert usable(tmp_path, warn=warnings.append).state.epoch == 2
    assert usable(tmp_path, "another", warn=warnings.append) is None
    assert "other settings, data or code" in warnings[-1]


def test_only_needed_checkpoints_are_read(tmp_path, monkeypatch):
    """A checkpoint of ResNet-50 has 380 MB, and reading one hashes it."""
    read = []
    digest = checkpoints._digest_of
    monkeypatch.setattr(
        checkpoints, "_digest_of", lambda handle: read.append(handle.name) or digest(handle)
    )
    for epoch in (1, 2, 4, 6):
        state = TrainingState(epoch=epoch, step=0, done=5 * epoch, history=[])
        checkpoint = Checkpoint("key", state, [np.zeros(1)])
        write_checkpoint(tmp_path / f"segments/000{epoch}.npz", checkpoint)
    for epoch, step in ((2, 3), (3, 1)):
        folder = tmp_path / "checkpoints"
        save(folder, 5 * epoch + step, np.zeros(1), epoch=epoch, of_epoch=step)

    def latest(epochs):
        read.clear()
        settings = TrainSettings(ranks_per_node=1)
        segment = Segment(tmp_path / "segments", epochs)
        saved = Checkpoints(
            tmp_path / "checkpoints", segment, "key", None, None, settings, None, print
        )
        return position(saved._latest()), [Path(name).name for name in read]

    assert latest(5) == ((4, 0), ["step-000000016.npz", "0004.npz"])
    assert latest(4) == ((4, 0), ["step-000000016.npz", "0004.npz"])
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    assert latest(5) == ((4, 0), ["0004.npz"])
    (tmp_path / "segments/0004.npz").write_bytes(b"")
    assert latest(5) == ((2, 0), ["0004.npz", "0002.npz"])


def test_old_checkpoints_are_deleted(tmp_path):
    for step in range(5):
        save(tmp_path, step)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "step-000000003.npz",
        "step-000000004.npz",
    ]


def test_checkpoints_of_a_longer_training_do_not_displace_new_ones(tmp_path):
    for step in (70, 80):
        save(tmp_path, step, key="before")
    (tmp_path / ".step-000000090-x.npz").write_text("left by a kill")
    for step in (1, 2, 3):
        save(tmp_path, step, key="now")
        assert checkpoints_by_time(tmp_path)[0].name == f"step-{step:09d}.npz"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-000000002.npz",
        "step-000000003.npz",
    ]


def batches_shown(folder):
    """Return for each start the steps and the digests of their batches."""
    starts = {}
    for line in (folder / "shown.txt").read_text().splitlines():
        process, step, digest = line.split()
        starts.setdefault(process, []).append((int(step), digest))
    return list(starts.values())


@pytest.mark.slow
def test_interruptions_do_not_change_the_batches(launcher, manifest, tmp_path):
    """Each start continues after the last saved step, and the model is the same."""
    ends = {}
    for name, strikes in (("uninterrupted", 0), ("struck", STRIKES)):
        folder = tmp_path / name
        folder.mkdir()
        options = ("--manifest", manifest, "--out", folder, "--strikes", strikes)
        program = "tests/training/programs/struck_often.py"
        done = subprocess.run(
            [sys.executable, str(ROOT / program), *map(str, options)],
            env=launcher.environment | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        ends[name] = re.findall(r"^start \d+: ended with (-?\d+)", done.stdout, re.MULTILINE)
    assert ends["uninterrupted"] == ["0"] and ends["struck"][-1] == "0", ends
    assert {*ends["struck"][:-1]} == {"-9", "75"}, "both signals, each during training"
    ((whole,), starts) = (batches_shown(tmp_path / name) for name in ("uninterrupted", "struck"))
    assert [step for step, _ in whole] == list(range(75))
    reached, before = 0, "75"
    assert len(starts) == STRIKES + 1
    for shown, end in zip(starts, ends["struck"], strict=True):
        first, last = shown[0][0], shown[-1][0]
        # SIGTERM saves first; SIGKILL loses the checkpoint that is being written.
        assert reached - (3 if before == "-9" else 0) <= first <= reached
        assert shown == whole[first : last + 1]
        reached, before = last + 1, end
    assert reached == 75
    assert_same_bits(tmp_path / "uninterrupted/segments", tmp_path / "struck/segments")
