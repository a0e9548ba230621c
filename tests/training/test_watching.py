"""Where the time of a step goes is told, and TensorBoard reads a training's figures."""

import json
import re
import time

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gigatile.evaluation.validation import validate
from gigatile.training.segments import Segment
from gigatile.training.watching import SPENT, Account, Events, bottleneck


def figures(folder):
    """Return what TensorBoard reads in a folder: steps and values by name."""
    read = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    read.Reload()
    return {
        name: [(one.step, float(np.array(one.tensor_proto.float_val or 0).sum()) or
            float(np.frombuffer(one.tensor_proto.tensor_content, np.float32)[0]))
            for one in read.Tensors(name)]
        for name in read.Tags()["tensors"]
    }  # fmt: skip


def test_time_is_entered_where_it_was_spent():
    account = Account()
    time.sleep(0.2)
    account.forget()
    for _ in range(2):
        account.begin()
        time.sleep(0.02)
        account.spend("input")
        account.spend("copy")
        time.sleep(0.08)
        account.spend("model")
        account.end(exchange=0.03, read=0.5, decode=0.25)
        time.sleep(0.2)  # saving, and whatever else is no part of a step
    seen = account.per_step()
    assert 0.02 <= seen[0] < 0.06 and seen[1] < 0.01 and 0.05 <= seen[2] < 0.09
    np.testing.assert_allclose(seen[3:], [0.03, 0.5, 0.25])


@pytest.mark.parametrize(
    ("spent", "told"),
    [
        ([0.001, 0, 0.2, 0.01, 0, 0], "The model's own arithmetic is what limits it."),
        ([0.08, 0, 0.2, 0.01, 0.1, 0.3], "It waits for samples to be decoded: more"),
        ([0.5, 0, 0.2, 0.01, 0.9, 0.3], "It waits for samples to be read: a faster disk"),
        ([0.01, 0, 0.2, 0.1, 0, 0], "Ranks wait for gradients"),
        ([0.01, 0.3, 0.2, 0.1, 0, 0], "Most of it is copying samples to the device."),
    ],
)
def test_what_limits_a_training_is_named(spent, told):
    said = bottleneck(np.array(spent))
    assert said.startswith(f"a step takes {1000 * sum(spent[:4]):.0f} ms: ")
    assert told in said and said.count(".") >= 2


def test_figures_reach_tensorboard(tmp_path):
    for step in (3, 7):  # a training that goes on writes a file of its own
        Events(tmp_path).write(step, {"epoch/loss": step / 2})
    assert figures(tmp_path) == {"epoch/loss": [(3, 1.5), (7, 3.5)]}


def test_a_training_and_its_validation_are_seen_as_they_are(launcher, manifest, tmp_path):
    arguments = launcher.train_arguments(manifest, tmp_path, 2, epochs=2)
    done = launcher.run(2, "scripts/train.py", *arguments, "--events", tmp_path / "events")
    assert done.returncode == 0, done.stderr
    told = re.findall(r"^a step takes (\d+) ms: (\d+) waiting for input, (\d+) copying, (\d+) in"
                      r" the model, (\d+) between ranks", done.stdout, re.MULTILINE)  # fmt: skip
    assert len(told) == 2, done.stdout
    for whole, *parts in told:
        assert abs(int(whole) - sum(map(int, parts))) <= len(SPENT), "roundings apart"
    segment = Segment(tmp_path / "segments", 2)
    history = json.loads(segment.described.read_text())["history"]
    seen = figures(tmp_path / "events")
    for column, name in enumerate(("loss", "accuracy"), 1):
        assert seen[f"epoch/{name}"] == [
            (5 * epoch, pytest.approx(history[epoch - 1][column], rel=1e-6)) for epoch in (1, 2)
        ]
    validate(segment, manifest, print, tmp_path / "valid")
    valid = json.loads(segment.validated.read_text())
    assert figures(tmp_path / "valid") == {
        f"epoch/{name}": [(10, pytest.approx(valid[name], rel=1e-6))]
        for name in ("loss", "accuracy")
    }
