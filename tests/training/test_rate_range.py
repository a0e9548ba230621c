"""The range test of learning rates, with the command `gigatile find-rate`."""

import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from gigatile.tables import read_table
from gigatile.training.rate_range import RateRange


def test_the_smoothed_loss_is_a_weighted_mean_of_the_losses_so_far():
    losses = np.random.default_rng(1).random(40)
    smooth = RateRange(np.ones(40), losses).smooth
    for last in range(40):
        weights = 0.9 ** np.arange(last, -1, -1)
        expected = np.average(losses[: last + 1], weights=weights)
        assert smooth[last] == pytest.approx(expected)


def test_fastest_and_lowest_are_those_of_a_known_curve():
    rates = np.geomspace(1e-6, 1, 121)
    position = np.log10(rates)
    # Falls as a logistic curve around 1e-3, and rises steeply beyond 1e-1.
    losses = 2 - 1.5 / (1 + np.exp(-4 * (position + 3))) + np.maximum(0, position + 1) * 20
    tested = RateRange(rates, losses)
    # The moving mean is some steps behind.
    assert 1e-3 <= tested.fastest <= 1e-2
    assert 0.05 <= tested.lowest <= 0.3


def test_short_and_rising_curves_have_a_result():
    for losses in ([1.0], [1.0, 2.0], [1.0, 2.0, 3.0], [3.0, 2.0, 1.0]):
        tested = RateRange(np.geomspace(1e-4, 1e-2, len(losses)), np.array(losses))
        assert tested.fastest <= tested.lowest


@pytest.fixture(scope="module")
def folder(manifest, tmp_path_factory):
    """Return a folder with a configuration and the shards of its run."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.yaml").write_text(
        "run: mine\nsamples: samples.tsv\ntrain: {batch_size: 16, ranks_per_node: 2}\n"
    )
    shutil.copytree(manifest.parent, folder / "results/mine/shards")
    return folder


def rates(folder, *options) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "gigatile", "find-rate", str(folder), *options]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300)


def test_rates_rise_and_the_loss_is_that_of_a_training(folder):
    tables = []
    for name in ("one", "two"):
        options = ("--steps", "40", "--lowest", "1e-5", "--highest", "100")
        done = rates(folder, "--out", f"{name}.png", *options)
        assert done.returncode == 0, done.stderr
        tables.append((folder / f"{name}.tsv").read_text())
    assert tables[0] == tables[1]
    rows = read_table(folder / "one.tsv")
    shown = np.array([float(row["learning_rate"]) for row in rows])
    np.testing.assert_allclose(shown, np.geomspace(1e-5, 100, 40)[: len(rows)], rtol=1e-5)
    losses = np.array([float(row["loss"]) for row in rows])
    assert losses[0] == pytest.approx(math.log(3), abs=0.4)
    assert losses.min() < 0.9 * losses[0], "it learns"
    # It ends once it has diverged, before the last rate.
    assert len(rows) < 40
    *lines, last = done.stdout.splitlines()
    assert last == "two.png" and len(lines) == 2
    fastest = float(lines[0].removeprefix("the loss falls fastest at a learning rate of "))
    lowest = float(lines[1].removeprefix("it is lowest at ").partition(";")[0])
    assert 1e-5 <= fastest <= lowest <= 10
    with Image.open(folder / "two.png") as picture:
        assert picture.size == (840, 480)
    assert sorted(path.name for path in (folder / "results/mine").iterdir()) == ["shards"]


@pytest.mark.long
def test_a_range_that_ends_too_early_is_reported(folder):
    done = rates(folder, "--steps", "20", "--lowest", "1e-5", "--highest", "1e-3")
    assert done.returncode == 0, done.stderr
    assert "it still falls at 1.0e-03, the last rate; set --highest to a larger one" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", "3"), "--steps: found 3; must be 10 to 100000"),
        (("--lowest", "0"), "--lowest must be above 0, and --highest above --lowest"),
        (("--lowest", "1", "--highest", "0.1"), "--lowest must be above 0"),
        (("--out", "rates.jpg"), "--out: found rates.jpg; must be a file .png"),
    ],
)
def test_wrong_options_are_one_message(folder, options, message):
    done = rates(folder, *options)
    assert done.returncode == 2 and message in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_shards_are_named(folder, tmp_path):
    shutil.copy(folder / "config.yaml", tmp_path)
    done = rates(tmp_path)
    assert done.returncode == 2
    assert "results/mine/shards/manifest.json: no shards yet; `gigatile run" in done.stderr
