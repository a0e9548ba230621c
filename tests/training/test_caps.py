"""Caps of slides and patients: exact in every epoch, and fair over several."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from gigatile.records import Tile, encode_tile, write_records
from gigatile.records.shard_layout import Source
from gigatile.records.shards import ShardReader
from gigatile.records.shuffle import key64
from gigatile.records.tile import encode_jpeg
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks.tile_classification.training import TileClassification
from gigatile.training.caps import Caps
from gigatile.training.sample_order import Epoch, Sampling


def random_cohort(seed: int) -> SimpleNamespace:
    """Return records of random slides of random patients, mixed in shards of random sizes."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, random.choice([3, 20, 90]), random.integers(1, 25))
    patients = random.integers(0, random.integers(1, 12), len(sizes))
    labels = np.append(random.integers(0, 3, len(sizes) - 1), 0)
    slides = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    cuts = np.sort(random.integers(0, len(slides) + 1, random.integers(0, 9)))
    shards = np.split(labels[slides], cuts)
    ids = random.integers(0, 2**63, (2, 25)).astype(np.uint64)
    return SimpleNamespace(
        sizes=sizes,
        patients=patients,
        labels=labels,
        slides=slides,
        ids=(ids[0][slides], ids[1][patients][slides]),
        shards=shards,
        counts=np.array([np.bincount(shard, minlength=3) for shard in shards]),
        random=random,
    )


def shown(cohort: SimpleNamespace, caps: Caps, number: int, boost=(), **options) -> np.ndarray:
    """Return how often an epoch shows each record, counted in the order of the samples."""
    sampling = Sampling(cohort.counts, 5, 3, shares=caps.shares(boost, 5), **options)
    epoch = Epoch(sampling, number, cohort.shards.__getitem__)
    records = epoch.samples(0, len(epoch)).records
    cut = int(cohort.random.integers(0, len(epoch) + 1))
    parts = [epoch.samples(*part).records for part in ((0, cut), (cut, len(epoch)))]
    np.testing.assert_array_equal(np.concatenate(parts), records)
    return np.bincount(records, minlength=len(cohort.slides))


def expected_counts(sizes: np.ndarray, total: int | None) -> np.ndarray:
    """Return the whole records of each slide of a patient: one after the other gives one up."""
    counts = sizes.copy()
    while total is not None and counts.sum() > total:
        counts[counts.argmax()] -= 1
    return counts


@pytest.mark.parametrize("seed", range(60))
def test_caps_hold_in_every_epoch_and_records_take_turns(seed):
    cohort = random_cohort(seed)
    per_slide, per_patient = (
        None if cohort.random.random() < 0.3 else int(cohort.random.integers(1, 60))
        for _ in range(2)
    )
    labels = cohort.labels[cohort.slides]
    caps = Caps(*cohort.ids, labels, per_slide, per_patient)
    epochs = [shown(cohort, caps, number) for number in range(12)]
    most = np.minimum(cohort.sizes, per_slide or cohort.sizes)
    for epoch in epochs:
        assert epoch.max() <= 1
        of_slides = np.bincount(cohort.slides, epoch, len(cohort.sizes)).astype(int)
        for patient in np.unique(cohort.patients):
            own = cohort.patients == patient
            expected = expected_counts(most[own], per_patient)
            assert of_slides[own].sum() == expected.sum()
            assert sorted(of_slides[own]) == sorted(expected)
            if per_patient is None:
                np.testing.assert_array_equal(of_slides[own], most[own])
    for last in range(1, 13):
        together = np.sum(epochs[:last], axis=0)
        for slide in range(len(cohort.sizes)):
            assert np.ptp(together[cohort.slides == slide]) <= 1
    # Slides of a patient that cannot all show one more do so in turn.
    totals = np.bincount(cohort.slides, np.sum(epochs, axis=0), len(cohort.sizes))
    for patient in np.unique(cohort.patients):
        own = cohort.patients == patient
        larger = own & (most >= most[own].max())
        assert np.ptp(totals[larger]) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_balance_counts_what_the_caps_leave(seed):
    cohort = random_cohort(1000 + seed)
    labels = cohort.labels[cohort.slides]
    caps = Caps(*cohort.ids, labels, 7, 20)
    counts = caps.class_counts(3)
    without = np.sum([shown(cohort, caps, number) for number in range(60)], axis=0)
    for label, count in enumerate(counts):
        assert abs(without[labels == label].sum() - 60 * count) <= len(cohort.sizes)
    boost = [Fraction(1, 3), Fraction(2), Fraction(5, 4)]
    epochs = [shown(cohort, caps, number, boost) for number in range(36)]
    for label, factor in enumerate(boost):
        total = np.sum(epochs, axis=0)[labels == label].sum()
        assert abs(total - 36 * factor * counts[label]) <= len(cohort.sizes)
    for slide in range(len(cohort.sizes)):
        assert np.ptp(np.sum(epochs, axis=0)[cohort.slides == slide]) <= 1


def test_each_view_of_an_epoch_has_the_same_records():
    cohort = random_cohort(3)
    caps = Caps(*cohort.ids, cohort.labels[cohort.slides], 2, None)
    once = shown(cohort, caps, 4, views=(0,))
    np.testing.assert_array_equal(shown(cohort, caps, 4, views=(0, 2, 5)), 3 * once)


def test_slides_of_two_patients_with_one_id_are_two(tmp_path):
    """As in joined runs of two hospitals, which both number their slides."""
    members = []
    for patient in ("P1", "P2"):
        record = tmp_path / patient / "S1.tfrecord"
        record.parent.mkdir()
        tile = Tile(encode_jpeg(np.zeros((8, 8, 3), np.uint8), 90), "S1", 0, 0, 8, 0.5, 1.0)
        write_records(record, [encode_tile(tile)])
        source = Source("S1", patient, "a", record)
        write_shards({"train": [source]}, ShardSettings(), tmp_path / patient / "shards")
        reader = ShardReader(tmp_path / patient / "shards/manifest.json", "train")
        members.append(tuple(map(int, np.concatenate(reader.members()))))
        reader.close()
    assert members[0][0] != members[1][0] and members[0][1] != members[1][1]


def test_caps_of_real_shards(manifest):
    reader = ShardReader(manifest, "train")
    slides, patients = reader.members()
    tiles = [reader[number] for number in range(len(reader))]
    assert slides.tolist() == [key64(tile.patient, tile.slide) for tile in tiles]
    assert patients.tolist() == [key64(tile.patient) for tile in tiles]
    task = TileClassification(TileSettings())
    settings = TrainSettings(tiles_per_slide=3, balance="epoch")
    sampling = task.sampling(reader, settings)
    for number in range(3):
        epoch = Epoch(sampling, number, reader.classes_of)
        records = epoch.samples(0, len(epoch)).records
        names = [tiles[record].slide for record in set(records.tolist())]
        assert max(names.count(name) for name in names) <= 3
    reader.close()
