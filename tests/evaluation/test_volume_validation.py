"""Validation of segmentation models: the loss and Dice of whole cases, from known scores."""

import json
import tracemalloc

import numpy as np
import pytest
from volume_set import blurring, copying, opened, write_model, write_set

from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.settings.patches import PatchSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.settings.windows import WindowSettings
from gigatile.tasks.volume_segmentation.sliding_window import Segmenter, score_volume
from gigatile.tasks.volume_segmentation.training import VolumeSegmentation
from gigatile.tasks.volume_segmentation.validation import validate
from gigatile.training.segments import Segment
from gigatile.training.validation import record_validation

WINDOW = (16, 16, 16)
SHAPES = ((40, 21, 17), (12, 30, 16))
REGIONS = ((1, 2, 3), (2, 3), (3,))
TRAINING = {
    "train": {"limit_batches": None},
    "inputs": {},
    "versions": {},
    "steps": 7,
    "metrics": ["dice"],
    "history": [],
}


def shares(shape, outputs: int, softmax: bool) -> np.ndarray:
    """Return scores, some close to 0 and 1, as the image of a model that copies its input."""
    random = np.random.default_rng([*shape, outputs])
    scores = random.dirichlet(np.full(4, 0.5), shape) if softmax else random.random((*shape, 3))
    if not softmax:
        scores[random.random((*shape, 3)) < 0.1] = 0.999
    scores[: shape[0] // 4] = 1e-3  # voxels with 0 in all channels are outside the head
    if softmax:
        scores[: shape[0] // 4, ..., 0] = 1 - 3e-3
    return scores.astype(np.float16)


def segment_with_cases(folder, softmax: bool, model=None, labelled=True, channels=None, limit=None):
    """Return a segment with a model that copies its input, a manifest of two cases, and these."""
    outputs = 4 if softmax else 3
    names = tuple("abcd"[:outputs])
    volumes = VolumeSettings(labels="decathlon", modalities=names)
    patches = PatchSettings(size=WINDOW, targets="labels" if softmax else "regions")
    settings = TRAINING | {"train": {"limit_batches": limit}}
    model = model or copying(WINDOW, outputs)
    write_model(folder / "segments", model, volumes, patches, "0002", **settings)
    random = np.random.default_rng(5)
    cases = {}
    for number, shape in enumerate(SHAPES):
        labels = random.choice(np.array([0, 1, 2, 3], np.uint8), shape, p=(0.6, 0.2, 0.1, 0.1))
        labels[labels == 3] *= number  # the first case lacks a label
        cases[f"C{number}"] = shares(shape, outputs, softmax), labels if labelled else None
    manifest = write_set(folder, {"valid": cases}, channels or names)
    return Segment(folder / "segments", 2), manifest, cases


def run(segment, manifest, **windows) -> tuple[dict, list[str]]:
    """Validate; return the content of the file and the lines of the log."""
    lines: list[str] = []
    validation = validate(segment, manifest, {"windows": windows})
    record_validation(segment, manifest, validation, lines.append, events=None)
    return json.loads(segment.validated.read_text()), lines


def metrics_of_regions(scores, labels) -> tuple[float, float]:
    entropies, soft, hard = [], [], []
    for number, values in enumerate(REGIONS):
        p, inside = scores[..., number], np.isin(labels, values)
        clipped = np.clip(p, 1e-7, 1 - 1e-7)
        entropies.append(-np.where(inside, np.log(clipped), np.log(1 - clipped)).mean())
        soft.append((2 * p[inside].sum() + 1) / (p.sum() + inside.sum() + 1))
        hard.append(plain_dice(p > 0.5, inside))
    return np.mean(entropies) + 1 - np.mean(soft), np.mean(hard)


def metrics_of_labels(scores, labels) -> tuple[float, float]:
    of_label = np.take_along_axis(scores, labels[..., None].astype(int), axis=-1)
    soft, hard = [], []
    for value in (1, 2, 3):
        p, inside = scores[..., value], labels == value
        soft.append((2 * p[inside].sum() + 1) / (p.sum() + inside.sum() + 1))
        hard.append(plain_dice(scores.argmax(axis=-1) == value, inside))
    return -np.log(np.clip(of_label, 1e-7, 1)).mean() + 1 - np.mean(soft), np.mean(hard)


def plain_dice(predicted, reference) -> float:
    voxels = predicted.sum() + reference.sum()
    return 2 * (predicted & reference).sum() / voxels if voxels else 1.0


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("windows", [{}, {"overlap": 0.75, "flips": True}])
def test_loss_and_dice_are_the_means_over_whole_cases(tmp_path, softmax, windows):
    segment, manifest, cases = segment_with_cases(tmp_path, softmax)
    result, (line,) = run(segment, manifest, **windows)
    metrics_of = metrics_of_labels if softmax else metrics_of_regions
    loss, dice = np.mean(
        [metrics_of(s.astype(np.float64), labels) for s, labels in cases.values()], axis=0
    )
    assert result["loss"] == pytest.approx(loss, rel=1e-4)
    assert result["dice"] == pytest.approx(dice, abs=2e-3 if softmax else 1e-5)
    assert (result["epoch"], result["cases"]) == (2, 2)
    assert line == f"epoch 2: validation loss {loss:.4f}, dice {result['dice']:.3f} on 2 cases"
    assert result["inputs"] == {
        "segments/0002.keras": sha256_of(segment.model),
        "shards/manifest.json": sha256_of(manifest),
    }


def test_loss_and_dice_equal_those_of_training(tmp_path):
    """A patch of the size of a whole case has the same loss and Dice in both."""
    segment, manifest, cases = segment_with_cases(tmp_path, False, blurring((16, 32, 16), 3, 3))
    segmenter = Segmenter(segment.model, segment.described)
    result, _ = run(segment, manifest)
    task = VolumeSegmentation(segmenter.volumes, PatchSettings(size=WINDOW))
    means = []
    for case, (_, labels) in cases.items():
        scores = list(
            score_volume(segmenter, opened(tmp_path / f"{case}.tfrecord"), WindowSettings())
        )
        p = np.concatenate(scores).astype(np.float64)
        p = np.clip(p, 1e-7, 1 - 1e-7)
        logits = np.log(p / (1 - p)).astype(np.float32)
        sums = task.sums([logits[None]], labels[None], np.ones(1, "f4"))
        means.append([float(sums[name]) for name in ("loss", "dice")])
    loss, dice = np.mean(means, axis=0)
    assert result["loss"] == pytest.approx(loss, rel=1e-4)
    assert result["dice"] == pytest.approx(dice, abs=1e-5)


def test_limit_batches_limits_the_cases(tmp_path):
    segment, manifest, cases = segment_with_cases(tmp_path, False, limit=1)
    result, (line,) = run(segment, manifest)
    assert (result["cases"], line.endswith("on 1 cases")) == (1, True)
    losses = [metrics_of_regions(s.astype(np.float64), la)[0] for s, la in cases.values()]
    assert any(result["loss"] == pytest.approx(loss, rel=1e-4) for loss in losses)
    segment, manifest, _ = segment_with_cases(tmp_path / "many", False, limit=50)
    assert run(segment, manifest)[0]["cases"] == 2


def test_wrong_scores_of_0_and_1_have_a_finite_loss(tmp_path):
    names, shape = ("a", "b", "c"), (18, 16, 16)
    labels = np.zeros(shape, np.uint8)
    labels[9:] = 3
    image = np.zeros((*shape, 3), np.float16)
    image[:9] = 1
    paths = write_model(
        tmp_path / "segments", copying(WINDOW, 3),
        VolumeSettings(labels="decathlon", modalities=names),
        PatchSettings(size=WINDOW), "0002", **TRAINING,
    )  # fmt: skip
    manifest = write_set(tmp_path, {"valid": {"C1": (image, labels)}}, names)
    result, _ = run(Segment(paths[0].parent, 2), manifest)
    assert result["loss"] == pytest.approx(1 - np.log(1e-7), rel=0.01)
    assert result["dice"] == pytest.approx(0, abs=1e-6)


def test_second_validation_writes_the_same_bytes(tmp_path):
    segment, manifest, _ = segment_with_cases(tmp_path, False, blurring(WINDOW, 3, 3))
    run(segment, manifest)
    before = segment.validated.read_bytes()
    run(segment, manifest)
    assert segment.validated.read_bytes() == before


def test_memory_is_at_most_a_few_slabs(tmp_path):
    folder, names = tmp_path, ("a", "b", "c")
    shape = (100, 160, 96)
    image = shares(shape, 3, False)
    labels = np.random.default_rng(1).integers(0, 4, shape, np.uint8)
    write_model(
        folder / "segments", copying(WINDOW, 3),
        VolumeSettings(labels="decathlon", modalities=names),
        PatchSettings(size=WINDOW), "0002", **TRAINING,
    )  # fmt: skip
    manifest = write_set(folder, {"valid": {"C1": (image, labels)}}, names)
    segment = Segment(folder / "segments", 2)
    tracemalloc.start()
    run(segment, manifest, overlap=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    slab = 16 * 160 * 96 * 4 * 4
    assert peak < 4 * slab + 25e6, "25 MB for the model's graph"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labelled": False}, "case C[01]: has no segmentation to validate with"),
        ({"channels": ("c", "b", "a")}, "case C[01]: has the channels c, b, a, but the model"),
    ],
)
def test_unsuitable_cases_are_refused(tmp_path, options, message):
    segment, manifest, _ = segment_with_cases(tmp_path, False, **options)
    with pytest.raises(UserError, match=message):
        run(segment, manifest)
    assert not segment.validated.exists()


def test_command_validates(command, tmp_path):
    segment, manifest, cases = segment_with_cases(tmp_path, False)
    done = command(
        *("validate.py", "--task", "volume_segmentation"),
        *("--segments", segment.folder, "--epoch", 2, "--manifest", manifest),
        *("--task-settings", '{"windows":{"overlap":0}}', "--events", tmp_path / "events"),
    )
    assert done.returncode == 0, done.stderr
    loss = np.mean([metrics_of_regions(s.astype(np.float64), la)[0] for s, la in cases.values()])
    assert done.stdout.startswith(f"epoch 2: validation loss {loss:.4f}, dice ")
    assert list((tmp_path / "events").iterdir())
