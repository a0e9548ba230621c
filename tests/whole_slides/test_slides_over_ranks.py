"""Any number of ranks gives the states and the sum of gradients of a single process."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_encoders import build, picture_of, random_pixels
from test_two_passes import AGGREGATORS, build_aggregator, random_tissue

from gigatile.whole_slides.receptive_field import receptive_field
from gigatile.whole_slides.two_passes import Alone, TwoPasses, deal

MAX_RANKS = 4
pytestmark = pytest.mark.usefixtures("double_precision")


class Launch:
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=120)
        self.values = [None] * size


@dataclass
class Rank:
    """A thread as a rank; see `gigatile.whole_slides.two_passes.Sharing`."""

    rank: int
    threads: int = 2
    launch: Launch = field(default_factory=lambda: Launch(1))
    progress: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.launch.size

    def gather(self, values: np.ndarray, name: str) -> np.ndarray:
        self.launch.values[self.rank] = values
        self.launch.barrier.wait()
        gathered = np.stack(self.launch.values)
        self.launch.barrier.wait()
        return gathered

    def report_progress(self, where: str) -> None:
        self.progress.append(where)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_states_and_gradients_do_not_depend_on_the_number_of_ranks(name):
    encoder = build([("conv", (3, 3), 2, "same", 1, 0, 0), ("conv", (2, 3), 1, "same", 1, 0, 0)])
    aggregator = build_aggregator(name, 4)
    pictures = []
    # A slide with fewer windows than ranks, and a slide of random tissue.
    for number, (height, width, share) in enumerate([(40, 31, 0.4), (7, 6, 1), (23, 50, 0.1)]):
        fields = receptive_field(encoder, height, width)
        tissue = random_tissue(fields, share, number)
        pictures.append(picture_of(random_pixels(height, width, number), fields, 4, tissue))
    total = sum(len(picture.windows) for picture in pictures)
    random = np.random.default_rng(1)
    of_pooled = random.normal(size=(3, 4))
    ranks = [Rank(number) for number in range(MAX_RANKS)]
    passes = [TwoPasses(encoder, aggregator, rank, pixels=tf.float64, window=20) for rank in ranks]

    def work(number: int):
        states = passes[number].pool(pictures)
        return states, *passes[number].gradients(pictures, states, of_pooled)

    alone = TwoPasses(encoder, aggregator, Alone(), pixels=tf.float64)
    states = alone.pool(pictures)
    gradients, again = alone.gradients(pictures, states, of_pooled)
    for size in range(1, MAX_RANKS + 1):
        launch = Launch(size)
        for rank in ranks:
            rank.launch = launch
            rank.progress.clear()
        with ThreadPoolExecutor(size) as pool:
            outcomes = list(pool.map(work, range(size)))
        for of_rank, _, repeated in outcomes:
            np.testing.assert_allclose(of_rank, states, rtol=1e-12)
            assert repeated == again
        sums = [sum(parts) for parts in zip(*(part for _, part, _ in outcomes), strict=True)]
        for ours, expected in zip(sums, gradients, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)
        # Each window is read by one rank, in the second pass unless its activations were kept; all
        # ranks have some of them.
        runs = [len(rank.progress) for rank in ranks[:size]]
        assert total <= sum(runs) <= total + again and min(runs) > 0


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(AGGREGATORS),
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=6),
    st.integers(0, 1000),
)
def test_merged_states_do_not_depend_on_the_division(name, windows, seed):
    """Small integers as embeddings: many values are equal."""
    aggregator = build_aggregator(name, 3)
    random = np.random.default_rng(seed)
    states = [aggregator.start(3) for _ in range(4)]  # the last one: a rank without windows
    whole = aggregator.start(3)
    rows = []
    for number, (count, rank) in enumerate(windows):
        embeddings = random.integers(0, 3, (count, 3)).astype(float)
        rows += [embeddings]
        states[rank] = aggregator.add(states[rank], embeddings, number).numpy()
        whole = aggregator.add(whole, embeddings, number).numpy()
    merged = aggregator.merge(np.stack(states))
    exact = 1e-14 if name == "attention" else 0
    np.testing.assert_allclose(merged, whole, rtol=exact)
    twice = aggregator.merge(np.stack([aggregator.merge(np.stack(states[:2])), *states[2:]]))
    np.testing.assert_allclose(twice, whole, rtol=exact)
    if name == "max":
        values = np.concatenate(rows)
        first = [
            (window, position)
            for window, of_window in enumerate(rows)
            for position in range(len(of_window))
        ]
        assert (merged[0] == values.max(axis=0)).all()
        places = [tuple(map(int, state)) for state in merged[1:].T]
        assert places == [first[row] for row in values.argmax(axis=0)]


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 8))
def test_windows_are_dealt_evenly(areas, ranks):
    dealt = deal(areas, ranks)
    assert len(dealt) == ranks
    assert sorted(itertools.chain(*dealt)) == list(range(len(areas)))
    for windows in dealt:  # the largest first
        assert windows == sorted(windows, key=lambda window: (-areas[window], window))
    loads = [sum(areas[window] for window in windows) for windows in dealt]
    assert max(loads) - min(loads) <= max(areas, default=0)


def test_large_windows_are_dealt_first():
    assert deal([1, 1, 1, 1, 4], 2) == [[4], [0, 1, 2, 3]]
