"""The simulated order has the values that theory predicts."""

import numpy as np
import pytest

from gigatile.training.sample_order import Sampling
from gigatile.training.simulation import simulate


def test_window_of_all_shards_is_a_perfect_shuffle():
    order = simulate(Sampling(np.full((20, 1), 500), 1, 20), batch_size=100)
    assert (order.samples, order.steps, order.min_shown, order.max_shown) == (10_000, 100, 1, 1)
    assert order.distance == pytest.approx(order.distance_ideal, rel=0.03)
    assert order.same_batch == pytest.approx(order.same_batch_ideal, rel=0.25)
    assert order.shards_per_step > 19.5


def test_small_window_reads_few_shards():
    order = simulate(Sampling(np.full((20, 1), 500), 1, 2), batch_size=100)
    assert order.distance == pytest.approx(1001 / 3, rel=0.05)
    assert order.distance_ideal == pytest.approx(10_001 / 3)
    assert 1.9 < order.shards_per_step <= 2


def test_each_view_is_one_pass():
    order = simulate(Sampling(np.full((4, 1), 50), 1, 4, views=(0, 4, 2)), batch_size=50)
    assert (order.samples, order.min_shown, order.max_shown) == (600, 3, 3)
    assert order.distance == pytest.approx(201 / 3, rel=0.2)


def test_command_prints_the_measures(command):
    done = command("simulate_order.py", "--tiles", 10_000, "--shard-mb", 5, "--shuffle-mb", 50)
    assert done.returncode == 0, done.stderr
    assert "10,000 tiles in 30 shards, 10 of them mixed at a time" in done.stdout
    assert "each tile 1 to 1 times" in done.stdout
    done = command("simulate_order.py", "--tiles", 100, "--batch-size", 32, "--ranks", 3)
    assert (done.returncode, done.stderr) == (
        2,
        "error: --batch-size must be a multiple of --ranks\n",
    )
