"""Step times are measured, and TensorBoard reads the scalars of a training."""

import json
import re
import time

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gigatile.tasks.tile_classification.validation import validate
from gigatile.training.monitoring import PHASES, EventWriter, StepTimer, bottleneck
from gigatile.training.segments import Segment
from gigatile.training.validation import record_validation


def scalars(folder):
    """Return the scalars in a folder as TensorBoard reads them: steps and values by name."""
    read = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    read.Reload()
    return {
        name: [(event.step, float(np.array(event.tensor_proto.float_val or 0).sum()) or
            float(np.frombuffer(event.tensor_proto.tensor_content, np.float32)[0]))
            for event in read.Tensors(name)]
        for name in read.Tags()["tensors"]
    }  # fmt: skip


def test_time_counts_for_its_phase():
    timer = StepTimer()
    time.sleep(0.2)
    timer.reset()
    for _ in range(2):
        timer.begin()
        time.sleep(0.02)
        timer.end_phase("input")
        timer.end_phase("copy")
        time.sleep(0.08)
        timer.end_phase("model")
        timer.end_step(exchange=0.03, read=0.5, decode=0.25)
        time.sleep(0.2)  # saving and other work outside a step
    seen = timer.per_step()
    assert 0.02 <= seen[0] < 0.06 and seen[1] < 0.01 and 0.05 <= seen[2] < 0.09
    np.testing.assert_allclose(seen[3:], [0.03, 0.5, 0.25])


@pytest.mark.parametrize(
    ("seconds", "advice"),
    [
        ([0.001, 0, 0.2, 0.01, 0, 0], "The model's arithmetic limits the speed."),
        ([0.08, 0, 0.2, 0.01, 0.1, 0.3], "Decoding limits the speed: increase"),
        ([0.5, 0, 0.2, 0.01, 0.9, 0.3], "Reading limits the speed: put shards/"),
        ([0.01, 0, 0.2, 0.1, 0, 0], "The exchange between ranks limits"),
        ([0.01, 0.3, 0.2, 0.1, 0, 0], "Copying samples to the device limits"),
    ],
)
def test_bottleneck_is_named(seconds, advice):
    line = bottleneck(np.array(seconds))
    assert line.startswith(f"{1000 * sum(seconds[:4]):.0f} ms per step: ")
    assert f". {advice}" in line


def test_tensorboard_reads_scalars(tmp_path):
    for step in (3, 7):  # a resumed training writes another file
        EventWriter(tmp_path).write(step, {"epoch/loss": step / 2})
    assert scalars(tmp_path) == {"epoch/loss": [(3, 1.5), (7, 3.5)]}


def test_training_and_validation_reach_tensorboard(launcher, manifest, tmp_path):
    arguments = launcher.train_arguments(manifest, tmp_path, 2, epochs=2)
    done = launcher.run(2, "scripts/train.py", *arguments, "--events", tmp_path / "events")
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^(\d+) ms per step: (\d+) waiting for input, (\d+) copying, (\d+) model,"
                      r" (\d+) exchange between ranks", done.stdout, re.MULTILINE)  # fmt: skip
    assert len(lines) == 2, done.stdout
    for whole, *parts in lines:
        assert abs(int(whole) - sum(map(int, parts))) <= len(PHASES), "equal up to rounding"
    segment = Segment(tmp_path / "segments", 2)
    history = json.loads(segment.described.read_text())["history"]
    seen = scalars(tmp_path / "events")
    for column, name in enumerate(("loss", "accuracy"), 1):
        assert seen[f"epoch/{name}"] == [
            (5 * epoch, pytest.approx(history[epoch - 1][column], rel=1e-6)) for epoch in (1, 2)
        ]
    validation = validate(segment, manifest, {})
    record_validation(segment, manifest, validation, print, tmp_path / "valid")
    valid = json.loads(segment.validated.read_text())
    assert scalars(tmp_path / "valid") == {
        f"epoch/{name}": [(10, pytest.approx(valid[name], rel=1e-6))]
        for name in ("loss", "accuracy")
    }
