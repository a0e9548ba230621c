"""Validation within an epoch: right, and the same for any number of ranks.

That it changes nothing is part of test_resume.py.
"""

import re

import numpy as np
import pytest
import tensorflow as tf
from volume_set import patient, write_set

from gigatile.errors import UserError
from gigatile.settings.patches import PatchSettings
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.settings.whole import load_settings
from gigatile.tasks.tile_classification.training import TileClassification
from gigatile.tasks.tile_classification.validation import validate
from gigatile.tasks.volume_segmentation.training import VolumeSegmentation
from gigatile.training.learner import Learner
from gigatile.training.ranks import Ranks
from gigatile.training.segments import Segment
from gigatile.training.step_validation import StepValidation

LINE = re.compile(
    r"^epoch (\d)/2, step (\d) of 5: validation loss (\S+), accuracy (\S+) on (\d+) tiles$", re.M
)


class Alone(Ranks):
    """A single rank without MPI."""

    def sum(self, values, name):
        return np.asarray(values)


def test_figures_are_those_of_the_model(launcher, manifest, tmp_path):
    """On one rank and two, with classes that an epoch shows more often than they are."""
    recipe = {"epochs": 2, "boost": {"fine": 0.5}, "batch_size": 14, "label_smoothing": 0.0}
    logs = {
        name: launcher.train(manifest, tmp_path / name, **recipe, **options).stdout
        for name, options in (
            ("two", {"ranks": 2, "validate_steps": 2}),
            ("alone", {"ranks": 1, "validate_steps": 5}),
        )
    }
    assert [(line[1], line[2]) for line in LINE.finditer(logs["two"])] == [
        *(("1", "2"), ("1", "4"), ("2", "1"), ("2", "3"), ("2", "5"))
    ]
    expected = validate(Segment(tmp_path / "two" / "segments", 2), manifest, {})
    for name in logs:
        *_, last = LINE.finditer(logs[name])
        assert float(last[3]) == pytest.approx(expected.means["loss"], abs=2e-3)
        assert float(last[4]) == pytest.approx(expected.means["accuracy"], abs=1e-3)
        assert int(last[5]) == expected.count


def test_patches_of_volumes_are_validated(tmp_path):
    cases = {f"C{number}": patient((26, 22, 24), number) for number in range(3)}
    splits = {"train": {"C0": cases["C0"]}, "valid": {"C1": cases["C1"], "C2": cases["C2"]}}
    manifest = write_set(tmp_path, splits, ("one", "two"))
    volumes = VolumeSettings(modalities=("one", "two"), labels="decathlon")
    patches = PatchSettings(size=(16, 16, 16), per_case=3, intensity=0.1)
    task = VolumeSegmentation(volumes, patches)
    settings = TrainSettings(model="small_unet", batch_size=4, ranks_per_node=1)
    network = task.networks(task.reader(manifest, "train"), settings, False).trained
    learner = Learner(network, task, settings, Alone(0, 1, 1))
    validation = StepValidation(manifest, settings, task, learner, Alone(0, 1, 1))
    means, count = validation.run(lambda: False)
    again, _ = validation.run(lambda: False)
    assert count == 6 and means == again and set(means) == {"loss", "dice"}
    totals = np.zeros(2)
    for batch in validation._batches():
        outputs = network(tf.constant(batch.inputs), training=False)
        sums = task.sums(outputs, batch.targets, batch.weights)
        totals += [sums["loss"], sums["dice"]]
    np.testing.assert_allclose(list(means.values()), totals / 6, rtol=1e-4)
    answers = iter([False, True])
    assert validation.run(lambda: next(answers)) is None and not list(answers)


def test_a_cohort_without_validation_split_is_refused(manifest, tmp_path):
    task, settings = TileClassification(TileSettings()), TrainSettings(ranks_per_node=1)
    reader = task.reader(manifest, "train")
    network = task.networks(reader, settings, False).trained
    learner = Learner(network, task, settings, Alone(0, 1, 1))
    without = tmp_path / "manifest.json"
    without.write_text(manifest.read_text().replace('"valid"', '"other"'))
    with pytest.raises(UserError, match="valid"):
        StepValidation(without, settings, task, learner, Alone(0, 1, 1))


def test_whole_slides_do_not_have_it():
    with pytest.raises(UserError, match=r"train\.validate_steps: not used by task: slide_"):
        load_settings(
            {"run": "mine", "task": "slide_classification", "train": {"validate_steps": 5}}
        )
