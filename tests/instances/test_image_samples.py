"""Real images with their nuclei as training samples, compared with whole images painted."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask

from gigatile.errors import UserError
from gigatile.instances.annotations import empty_instances, stack_instances
from gigatile.records.instances import (
    AnnotatedImage,
    encode_annotated,
    encode_png,
    read_annotated,
)
from gigatile.records.shard_layout import Source
from gigatile.records.shards import ShardReader
from gigatile.records.tfrecord import RecordError, write_records
from gigatile.records.writing import write_shards
from gigatile.settings.detection import DetectionSettings
from gigatile.settings.shards import ShardSettings
from gigatile.tasks.instance_segmentation.placement import place, place_boxes
from gigatile.tasks.instance_segmentation.samples import INSTANCE_STEP, PIXEL_STEP, Images
from gigatile.training.sample_order import Samples

# 8 of the images: of fluorescence and of stained tissue.
CHOSEN = slice(0, 40, 5)


@dataclass
class Annotated:
    """An image, and its masks in the whole image with their classes."""

    pixels: np.ndarray
    masks: list[np.ndarray]
    classes: list[int]


def write_record(folder: Path, name: str, image: Annotated, annotated: bool = True) -> Source:
    instances = empty_instances()
    if image.masks:
        instances = stack_instances([(mask, (0, 0)) for mask in image.masks], image.classes)
    height, width = image.pixels.shape[:2]
    record = AnnotatedImage(
        encode_png(image.pixels), name, height, width, None, instances if annotated else None
    )
    path = folder / f"{name}.tfrecord"
    write_records(path, [encode_annotated(record)])
    return Source(name, name, "", path)


def open_shards(folder: Path, sources: list[Source]) -> ShardReader:
    write_shards(
        {"train": sources},
        ShardSettings(target_mb=0.2),
        folder / "shards",
        unit="image",
        record_id=lambda path: next(read_annotated(path)).image_id,
    )
    return ShardReader(folder / "shards/manifest.json", "train")


@pytest.fixture(scope="module")
def nuclei(shared_data) -> dict[str, Annotated]:
    folder = shared_data / "nuclei"
    if not folder.is_dir():
        pytest.skip(f"real data not found: {folder}")
    content = json.loads((folder / "annotations.json").read_text())
    images = {}
    for image in content["images"][CHOSEN]:
        pixels = cv2.imread(str(folder / "images" / image["file_name"]))
        codes = [
            annotation["segmentation"]
            for annotation in content["annotations"]
            if annotation["image_id"] == image["id"]
        ]
        masks = [coco_mask.decode(code).astype(bool) for code in codes]
        classes = [1 + number % 2 for number in range(len(masks))]
        name = Path(image["file_name"]).stem
        images[name] = Annotated(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), masks, classes)
    first = next(iter(images.values()))
    images["without-instances"] = Annotated(first.pixels[:100, :77], [], [])
    return images


@pytest.fixture(scope="module")
def reader(nuclei, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nuclei")
    sources = [write_record(folder, name, image) for name, image in nuclei.items()]
    reader = open_shards(folder, sources)
    assert len(reader) == len(nuclei) and len(reader.counts) > 1
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def names(reader, nuclei) -> list[str]:
    """Return the ids of the images in the order of the shards."""
    paths = dict.fromkeys(reader.locate(number)[0].path for number in range(len(reader)))
    return [image.image_id for path in paths for image in read_annotated(path)]


def some_samples(count: int, records: int) -> Samples:
    random = np.random.default_rng(count)
    return Samples(
        random.integers(0, records, count),
        np.zeros(count, np.int64),
        random.integers(0, 2**64, count, np.uint64, endpoint=False),
    )


def empty_arrays(images: Images, samples: Samples):
    """Return arrays with arbitrary values, as `fill` gets them."""
    inputs, targets = images.specs(samples)
    count = len(samples.records)
    arrays = {name: np.full((count, *t.shape), 99, t.dtype) for name, t in targets.items()}
    return np.full((count, *inputs.shape), 99, inputs.dtype), arrays


def painted(image: Annotated, seed: int, settings: DetectionSettings):
    """Return for each visible instance its class, its box if whole, and its mask on the canvas."""
    height, width = image.pixels.shape[:2]
    placement = place(height, width, seed, settings)
    instances = []
    for mask, number in zip(image.masks, image.classes, strict=True):
        turned = np.rot90(mask, placement.view % 4)
        turned = turned[:, ::-1] if placement.view >= 4 else turned
        tall, wide = placement.height, placement.width
        rows = [(2 * i + 1) * turned.shape[0] // (2 * tall) for i in range(tall)]
        columns = [(2 * j + 1) * turned.shape[1] // (2 * wide) for j in range(wide)]
        part = turned[rows][:, columns][placement.top :, placement.left :]
        part = part[: placement.canvas[0], : placement.canvas[1]]
        canvas = np.zeros(placement.canvas, bool)
        canvas[: part.shape[0], : part.shape[1]] = part
        if not canvas.any():
            continue
        own_rows, own_columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
        own = [own_rows[0], own_columns[0], own_rows[-1] + 1, own_columns[-1] + 1]
        (box,) = place_boxes(np.array([own]), height, width, placement)
        limits = placement.visible
        whole = box.min() >= 0 and box[2] <= limits[0] and box[3] <= limits[1]
        if not whole:
            rows, columns = (np.flatnonzero(canvas.any(axis=axis)) for axis in (1, 0))
            box = [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]
        instances.append((number, box, canvas, whole))
    return placement, instances


SETTINGS = [
    DetectionSettings(canvas=(160, 192)),
    DetectionSettings(canvas=(320, 256), scale=2, scale_jitter=0.3, intensity=0.2),
    DetectionSettings(canvas=(512, 512), short_edge=300, max_edge=350, flips="horizontal"),
    DetectionSettings(canvas=(96, 96), scale=0.3),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["crop", "enlarge", "pad", "reduce"])
def test_samples_equal_painted_masks(reader, names, nuclei, settings):
    images, samples = Images(reader, settings), some_samples(12, len(reader))
    inputs, targets = empty_arrays(images, samples)
    assert inputs.shape == (12, *settings.canvas, 3) and inputs.dtype == np.uint8
    images.fill(samples, inputs, targets)
    cut = 0
    largest = 0
    for index, (number, seed) in enumerate(zip(samples.records, samples.seeds, strict=True)):
        image = nuclei[names[number]]
        placement, instances = painted(image, int(seed), settings)
        ours = {name: array[index] for name, array in targets.items()}
        assert ours["sizes"].tolist() == list(placement.visible)
        assert ours["seeds"].astype(np.int32).tobytes() == int(seed).to_bytes(8, "little")
        count = len(instances)
        assert ours["classes"].tolist()[:count] == [each[0] for each in instances]
        end = 0
        for slot, (_, box, canvas, whole) in enumerate(instances):
            crop, offset = ours["crops"][slot], ours["offsets"][slot]
            shape = crop[2] - crop[0], crop[3] - crop[1]
            assert offset == end  # they follow each other
            end = offset + shape[0] * shape[1]
            mask = np.zeros(settings.canvas, np.uint8)
            mask[crop[0] : crop[2], crop[1] : crop[3]] = ours["pixels"][offset:end].reshape(shape)
            np.testing.assert_array_equal(mask, canvas)
            np.testing.assert_allclose(ours["boxes"][slot], box, atol=1e-3)
            cut += not whole
        # All else is padding.
        for name in ("boxes", "classes", "crops", "offsets"):
            assert (ours[name][count:] == 0).all(), name
        assert (ours["pixels"][end:] == 0).all()
        rows, columns = placement.visible
        height, width = settings.canvas
        sides = [(0, height - rows), (0, width - columns), (0, 0)]
        mirrored = np.pad(inputs[index, :rows, :columns], sides, mode="symmetric")
        np.testing.assert_array_equal(inputs[index], mirrored)
        largest = max(largest, count)
    assert largest > 5
    assert (cut > 5) == (settings.canvas[0] < 512 and settings.scale >= 1)
    # The padding is no larger than to the next multiple.
    slots, pixels = targets["classes"].shape[1], targets["pixels"].shape[1]
    assert slots % INSTANCE_STEP == 0 and pixels % PIXEL_STEP == 0
    assert slots - INSTANCE_STEP < max(map(len, (i.masks for i in nuclei.values())))


def test_threads_fill_the_same_arrays(reader):
    settings = SETTINGS[1]
    samples = some_samples(24, len(reader))
    expected = None
    for threads in (1, 4, 8):
        images = Images(reader, settings)
        inputs, targets = empty_arrays(images, samples)
        parts = [slice(first, first + 3) for first in range(0, 24, 3)]

        def fill(part, images=images, inputs=inputs, targets=targets):
            arrays = {name: array[part] for name, array in targets.items()}
            images.fill(samples[part], inputs[part], arrays)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, parts))
        arrays = [inputs, *targets.values()]
        expected = expected or arrays
        for ours, other in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(ours, other)


def test_samples_follow_from_their_seeds(reader):
    images, samples = Images(reader, SETTINGS[1]), some_samples(6, len(reader))
    arrays = []
    for order in (np.arange(6), np.arange(6)[::-1], np.arange(6)):
        some = Samples(samples.records[order], samples.views[order], samples.seeds[order])
        inputs, targets = empty_arrays(images, some)
        images.fill(some, inputs, targets)
        arrays.append((inputs[order], targets["boxes"][order], targets["seeds"][order]))
    for ours, expected in zip(arrays[0], arrays[1], strict=True):
        np.testing.assert_array_equal(ours, expected)
    # Another seed gives another sample of the same image.
    again = Samples(samples.records, samples.views, samples.seeds + np.uint64(1))
    inputs, targets = empty_arrays(images, again)
    images.fill(again, inputs, targets)
    assert all((a != b).any() for a, b in zip(inputs, arrays[0][0], strict=True))


def test_images_that_cannot_be_used_are_named(tmp_path):
    pixels = np.zeros((40, 30, 3), np.uint8)
    image = Annotated(pixels, [np.eye(40, 30, dtype=bool)], [1])
    source = write_record(tmp_path, "no-annotations", image, annotated=False)
    reader = open_shards(tmp_path, [source])
    samples = Samples(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.uint64))
    with pytest.raises(UserError, match="image no-annotations: has no annotations"):
        Images(reader, SETTINGS[0]).specs(samples)
    reader.close()
    for name, data, message in (
        ("png", b"\x89PNG no pixels", "image png: its pixels are damaged"),
        ("size", encode_png(pixels[:30]), r"image size: .*shape \(30, 30, 3\)"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        record = AnnotatedImage(data, name, 40, 30, None, empty_instances())
        write_records(folder / f"{name}.tfrecord", [encode_annotated(record)])
        reader = open_shards(folder, [Source(name, name, "", folder / f"{name}.tfrecord")])
        images = Images(reader, SETTINGS[0])
        inputs, targets = empty_arrays(images, samples)
        with pytest.raises(UserError, match=message):
            images.fill(samples, inputs, targets)
        reader.close()


def test_damaged_record_is_named(tmp_path):
    image = Annotated(np.zeros((40, 30, 3), np.uint8), [], [])
    reader = open_shards(tmp_path, [write_record(tmp_path, "A", image)])
    path = reader.locate(0)[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    samples = Samples(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.uint64))
    with pytest.raises(RecordError, match=path.name):
        Images(reader, SETTINGS[0]).specs(samples)
    reader.close()
