"""What the simulator says of an order is what can be counted by hand, or is known in theory."""

import numpy as np
import pytest

from gigatile.training.sample_order import Sampling
from gigatile.training.simulation import simulate


def test_a_window_of_all_shards_is_an_ideal_shuffle():
    found = simulate(Sampling(np.full((20, 1), 500), 1, 20), batch_size=100)
    assert (found.samples, found.steps, found.least, found.most) == (10_000, 100, 1, 1)
    assert found.apart == pytest.approx(found.apart_ideal, rel=0.03)
    assert found.together == pytest.approx(found.together_ideal, rel=0.25)
    assert found.shards_per_step > 19.5


def test_a_small_window_keeps_neighbours_near_and_reads_few_shards():
    found = simulate(Sampling(np.full((20, 1), 500), 1, 2), batch_size=100)
    assert found.apart == pytest.approx(1001 / 3, rel=0.05)
    assert found.apart_ideal == pytest.approx(10_001 / 3)
    assert 1.9 < found.shards_per_step <= 2


def test_several_views_are_several_passes():
    found = simulate(Sampling(np.full((4, 1), 50), 1, 4, views=(0, 4, 2)), batch_size=50)
    assert (found.samples, found.least, found.most) == (600, 3, 3)
    assert found.apart == pytest.approx(201 / 3, rel=0.2)


def test_the_command_prints_it(command):
    done = command("simulate_order.py", "--tiles", 10_000, "--shard-mb", 5, "--shuffle-mb", 50)
    assert done.returncode == 0, done.stderr
    assert "10,000 tiles in 30 shards, 10 of them mixed at a time" in done.stdout
    assert "each tile 1 to 1 times" in done.stdout
    done = command("simulate_order.py", "--tiles", 100, "--batch-size", 32, "--ranks", 3)
    assert (done.returncode, done.stderr) == (
        2,
        "error: --batch-size must be a multiple of --ranks\n",
    )
