"""Images and their annotations become records, or a state with all of their faults."""

import json
import re
import signal
import time

import numpy as np
import pytest
from PIL import Image as Picture
from pycocotools import mask as coco_mask

from gigatile.cohort.images import Image, parts_of
from gigatile.errors import UserError
from gigatile.instances import image_records
from gigatile.instances.image_files import read_image
from gigatile.instances.image_records import coco_file
from gigatile.instances.preparation import prepare_part
from gigatile.records.instances import decode_image, read_annotated
from gigatile.records.parts import image_state, part_of, span_of
from gigatile.records.tfrecord import read_record_at
from gigatile.settings.instances import InstanceSettings
from gigatile.settings.split import SplitSettings

SETTINGS = InstanceSettings(categories=("nucleus", "cell"))
SQUARE = [2.0, 2.0, 8.0, 2.0, 8.0, 6.0, 2.0, 6.0]


@pytest.fixture
def pixels(tmp_path) -> np.ndarray:
    """Write an image of 20 x 12 pixels as a.png, and return its pixels."""
    values = np.random.default_rng(1).integers(0, 256, (12, 20, 3), np.uint8)
    Picture.fromarray(values).save(tmp_path / "a.png")
    return values


def row(path, annotations, name="a"):
    return Image(name, "P", path, annotations, None, "", "", 2)


def prepare(folder, *images, settings=SETTINGS):
    coco_file.cache_clear()
    records, state = folder / "train-0000.tfrecord", folder / "train-0000.json"
    states = prepare_part("train-0000", images, settings, records, state).images
    return states, list(read_annotated(records))


def coco(folder, annotations, images=None, name="all.json"):
    content = {
        "images": images or [{"id": 5, "file_name": "a.png", "height": 12, "width": 20}],
        "annotations": [{"id": n, "image_id": 5, **a} for n, a in enumerate(annotations, 1)],
        "categories": [{"id": 9, "name": "nucleus"}, {"id": 3, "name": "cell"}],
    }
    (folder / name).write_text(json.dumps(content))
    return folder / name


def polygon(**more):
    return {"category_id": 9, "segmentation": [SQUARE], "bbox": [2, 2, 6, 4], **more}


def test_state_has_figures_of_the_pixels(tmp_path):
    values = np.random.default_rng(2).integers(0, 256, (40, 30, 3), np.uint8)
    Picture.fromarray(values).save(tmp_path / "a.png")
    Picture.fromarray(values[:12]).save(tmp_path / "small.png")
    paths = {"a": tmp_path / "a.png", "small": tmp_path / "small.png"}
    states, _ = prepare(tmp_path, *(row(path, None, name) for name, path in paths.items()))
    of_image, of_small = (state.appearance for state in states)
    colours = dict(zip(("red", "green", "blue"), values.mean((0, 1)).tolist(), strict=True))
    assert {name: of_image[name] for name in colours} == pytest.approx(colours, abs=1e-3)
    assert set(of_image) == {*colours, "contrast", "sharpness"}
    # Sharpness needs at least 16 pixels a side.
    assert of_small == {}


def test_polygons_and_codes_give_the_masks_of_pycocotools(tmp_path, pixels):
    mask = np.zeros((12, 20), np.uint8, order="F")
    mask[3:7, 10:13] = 1
    code = coco_mask.encode(mask)
    counts = [int(run) for run in np.diff(np.flatnonzero(np.diff(mask.ravel("F"), prepend=2)))]
    annotations = [
        polygon(),
        {"category_id": 3, "segmentation": code | {"counts": code["counts"].decode()}},
        {
            "category_id": 9,
            "iscrowd": 1,
            "segmentation": {"size": [12, 20], "counts": [*counts, 240 - sum(counts)]},
        },
    ]
    (state,), (record,) = prepare(tmp_path, row(tmp_path / "a.png", coco(tmp_path, annotations)))
    assert state.state == "prepared", state.reason
    assert state.instances == {"nucleus": 1, "cell": 1} and state.crowds == 1
    instances = record.instances
    assert instances.classes.tolist() == [1, 2, 1]
    assert instances.crowd.tolist() == [False, False, True]
    np.testing.assert_array_equal(record.pixels(), pixels)
    expected = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects([SQUARE], 12, 20)))
    for index, whole in enumerate((expected, mask, mask)):
        rle = instances.image_rle(index, 12, 20)
        np.testing.assert_array_equal(coco_mask.decode(rle), whole)
    assert instances.boxes.tolist() == [[2, 2, 6, 8], [3, 10, 7, 13], [3, 10, 7, 13]]


FAULTS = {
    "category": (polygon(category_id=8), "category 8 is not one of instances.categories"),
    "outside": (
        polygon(segmentation=[[15.0, 2.0, 25.0, 2.0, 25.0, 6.0]]),
        "polygon from (15, 2) to (25, 6) leaves the image of 20 × 12 pixels",
    ),
    "box outside": (polygon(bbox=[2, 2, 20, 4]), "bbox from (2, 2) to (22, 6) leaves the image"),
    "negative box": (polygon(bbox=[2, 2, -6, 4]), "the width -6 and the height 4; must be above 0"),
    "box of text": (polygon(bbox="all"), "bbox is 'all'; must be x, y, width and height"),
    "empty": (polygon(segmentation=[]), "its mask is empty"),
    "empty code": (
        polygon(segmentation={"size": [12, 20], "counts": [240]}),
        "its mask is empty",
    ),
    "two points": (polygon(segmentation=[[1, 1, 2, 2]]), "a polygon must be a list of x and y"),
    "no number": (polygon(segmentation=[[1, 1, 2, None, 3, 3]]), "is not a number"),
    "no mask": ({"category_id": 9}, "has no mask: segmentation must be polygons or"),
    "other size": (
        polygon(segmentation={"size": [20, 12], "counts": [240]}),
        "the size of its mask is [20, 12]; must be [12, 20]",
    ),
    "short code": (
        polygon(segmentation={"size": [12, 20], "counts": [3, 4]}),
        "the runs of its mask do not add up to 12 × 20 pixels",
    ),
    "huge runs": (
        polygon(segmentation={"size": [12, 20], "counts": [2**80, 240, -(2**80)]}),
        "the runs of its mask do not add up to 12 × 20 pixels",
    ),
    "runs of text": (
        polygon(segmentation={"size": [12, 20], "counts": [3, "4"]}),
        "a run of its mask is not a whole number",
    ),
    "category of another type": (
        polygon(category_id=[9]),
        "category [9] is not one of instances.categories",
    ),
    "damaged code": (
        polygon(segmentation={"size": [12, 20], "counts": "~~~"}),
        "the run-length code of its mask is damaged",
    ),
    "code of another image": (
        polygon(segmentation={"size": [12, 20], "counts": "5"}),
        "the runs of its mask do not add up to 12 × 20 pixels",
    ),
}


def test_all_faults_of_an_image_are_reported_at_once(tmp_path, pixels):
    annotations = [annotation for annotation, _ in FAULTS.values()]
    chosen = coco(tmp_path, annotations[:10])
    (state,), records = prepare(tmp_path, row(tmp_path / "a.png", chosen))
    assert state.state == "failed" and not records
    for number, (_, fault) in enumerate(list(FAULTS.values())[:10], 1):
        assert f"annotation {number}: {fault}" in state.reason or fault in state.reason
    with pytest.raises(UserError, match="image a: annotation 1: category 8"):
        settings = SETTINGS.model_copy(update={"on_error": "stop"})
        prepare(tmp_path, row(tmp_path / "a.png", chosen), settings=settings)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_an_annotation_is_named(tmp_path, pixels, name):
    annotation, fault = FAULTS[name]
    file = coco(tmp_path, [polygon(), annotation])
    (state,), _ = prepare(tmp_path, row(tmp_path / "a.png", file))
    assert state.reason.startswith("annotation 2: ") and fault in state.reason
    assert "annotation 1" not in state.reason


def test_run_length_codes_never_crash_the_process(tmp_path, pixels):
    """pycocotools decodes without checks: damaged codes would write outside its memory."""
    random = np.random.default_rng(3)
    whole = np.zeros((12, 20), np.uint8, order="F")
    whole[2:9, 4:15] = random.integers(0, 2, (7, 11))
    text = coco_mask.encode(whole)["counts"].decode()
    for _ in range(200):
        letters = list(text)
        for position in random.integers(0, len(letters), random.integers(1, 4)):
            letters[position] = chr(random.integers(32, 127))
        counts = "".join(letters)[: random.integers(1, len(letters) + 1)]
        segmentation = {"size": [12, 20], "counts": counts}
        file = coco_from(tmp_path, segmentation)
        instances, faults = file.instances(tmp_path / "a.png", 12, 20, ("nucleus",))
        assert len(instances) + len(faults) == 1


def coco_from(folder, segmentation):
    coco_file.cache_clear()
    return coco_file(coco(folder, [{"category_id": 9, "segmentation": segmentation}]))


@pytest.mark.parametrize(
    ("images", "fault"),
    [
        ([{"id": 5, "file_name": "b.png", "height": 12, "width": 20}], "has no image named a.png"),
        (
            [
                {"id": 5, "file_name": "a.png", "height": 12, "width": 20},
                {"id": 6, "file_name": "a.png", "height": 12, "width": 20},
            ],
            "has 2 images named a.png",
        ),
        (
            [{"id": 5, "file_name": "a.png", "height": 20, "width": 12}],
            "all.json says 12 × 20 pixels, but the file has 20 × 12",
        ),
    ],
)
def test_image_must_be_once_in_the_file_with_its_size(tmp_path, pixels, images, fault):
    (state,), _ = prepare(tmp_path, row(tmp_path / "a.png", coco(tmp_path, [], images)))
    assert fault in state.reason


def test_label_images_give_an_instance_per_number(tmp_path, pixels):
    labels = np.zeros((12, 20), np.uint16)
    labels[1:4, 1:5], labels[3:9, 8:12], labels[0, 19] = 500, 7, 7
    for name, write in (
        ("l.png", lambda path: Picture.fromarray(labels).save(path)),
        ("l.npy", lambda path: np.save(path, labels)),
        ("l.tif", lambda path: Picture.fromarray(labels).save(path)),
    ):
        write(tmp_path / name)
        (state,), (record,) = prepare(tmp_path, row(tmp_path / "a.png", tmp_path / name))
        assert state.instances == {"nucleus": 2, "cell": 0}, state.reason
        assert record.instances.boxes.tolist() == [[0, 8, 9, 20], [1, 1, 4, 5]]
        assert record.instances.mask(0).sum() == 25 and record.instances.mask(1).sum() == 12


@pytest.mark.parametrize(
    ("labels", "fault"),
    [
        (np.zeros((12, 21), np.uint8), "has 21 × 12 pixels, but the image has 20 × 12"),
        (np.zeros((12, 20, 3), np.uint8), "must be one channel of whole numbers"),
        (np.zeros((12, 20), np.float32), "must be one channel of whole numbers"),
        (np.full((12, 20), -1), "has the label -1; must be 0 or more"),
    ],
)
def test_wrong_label_image_is_refused(tmp_path, pixels, labels, fault):
    np.save(tmp_path / "l.npy", labels)
    (state,), _ = prepare(tmp_path, row(tmp_path / "a.png", tmp_path / "l.npy"))
    assert fault in state.reason


def test_image_without_instances_is_kept_or_left_out(tmp_path, pixels):
    np.save(tmp_path / "l.npy", np.zeros((12, 20), np.uint8))
    image = row(tmp_path / "a.png", tmp_path / "l.npy")
    (state,), (record,) = prepare(tmp_path, image)
    assert state.state == "prepared" and len(record.instances) == 0
    settings = SETTINGS.model_copy(update={"unannotated": "leave_out"})
    (state,), records = prepare(tmp_path, image, settings=settings)
    assert state.reason == "has no instances (instances.unannotated: leave_out)" and not records


def test_bad_files_are_recorded_and_the_others_go_on(tmp_path, pixels):
    good = (tmp_path / "a.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(good[: len(good) // 2])
    (tmp_path / "page.png").write_text("<html></html>")
    (tmp_path / "empty.png").touch()
    Picture.fromarray(np.zeros((12, 20), np.int32)).save(tmp_path / "deep.tif")
    Picture.fromarray(pixels).convert("CMYK").save(tmp_path / "print.jpg")
    names = ("cut.png", "page.png", "empty.png", "deep.tif", "print.jpg", "a.png")
    images = [row(tmp_path / name, None, name) for name in names]
    states, records = prepare(tmp_path, *images)
    reasons = {state.image: state.reason for state in states}
    assert [record.image_id for record in records] == ["a.png"]
    assert "damaged" in reasons["cut.png"]
    assert "not an image that can be read" in reasons["page.png"]
    assert "not an image that can be read" in reasons["empty.png"]
    assert "mode I; must be 8 bits per channel" in reasons["deep.tif"]
    assert "mode CMYK; must be 8 bits per channel" in reasons["print.jpg"]
    assert reasons["a.png"] is None


def test_fuzzed_images_never_break_a_part(tmp_path, pixels):
    random = np.random.default_rng(5)
    images = []
    for kind in ("png", "jpg"):
        Picture.fromarray(pixels).save(tmp_path / f"whole.{kind}")
        whole = (tmp_path / f"whole.{kind}").read_bytes()
        for number in range(20):
            data = bytearray(whole[: random.integers(1, len(whole) + 1)])
            for position in random.integers(0, len(data), 3):
                data[position] = random.integers(0, 256)
            path = tmp_path / f"{kind}{number}.{kind}"
            path.write_bytes(data)
            images.append(row(path, None, path.name))
    states, records = prepare(tmp_path, *images)
    assert len(states) == 40
    assert len(records) == sum(state.state == "prepared" for state in states)
    assert not any("unexpected error" in (state.reason or "") for state in states)


def test_decoder_that_crashes_ends_its_own_image_only(tmp_path, pixels, monkeypatch):
    def crash(path):
        if path.name == "b.png":
            signal.raise_signal(signal.SIGSEGV)
        if path.name == "c.png":
            time.sleep(60)
        return read_image(path)

    monkeypatch.setattr(image_records, "read_image", crash)
    for name in "bc":
        Picture.fromarray(pixels).save(tmp_path / f"{name}.png")
    images = [row(tmp_path / f"{name}.png", None, name) for name in "abc"]
    settings = SETTINGS.model_copy(update={"stall_minutes": 0.02})
    states, records = prepare(tmp_path, *images, settings=settings)
    assert [record.image_id for record in records] == ["a"]
    assert states[1].reason == "the process that read it crashed (SIGSEGV)"
    assert states[2].reason == "no progress for 0.02 minutes"
    assert json.loads((tmp_path / "train-0000.json").read_text())["stalled_minutes"] == 0.02


def test_jpeg_keeps_its_pixels_and_loses_its_metadata(tmp_path, pixels):
    exif = Picture.Exif()
    exif[0x010E] = "patient Jane Doe"
    path = tmp_path / "a.jpg"
    Picture.fromarray(pixels).save(path, exif=exif, comment=b"Jane Doe", quality=90)
    assert b"Jane Doe" in path.read_bytes()
    (state,), (record,) = prepare(tmp_path, row(path, None))
    assert state.state == "prepared" and b"Jane" not in record.image
    with Picture.open(path) as image:
        np.testing.assert_array_equal(decode_image(record.image), np.asarray(image))


def test_spans_lead_to_the_records_of_each_image(tmp_path, pixels):
    names = [f"i{number}" for number in range(5)]
    (tmp_path / "bad.png").touch()
    paths = [tmp_path / ("bad.png" if name == "i2" else "a.png") for name in names]
    images = [row(path, None, name) for path, name in zip(paths, names, strict=True)]
    states, _ = prepare(tmp_path, *images)
    size = (tmp_path / "train-0000.tfrecord").stat().st_size
    assert sum(state.records.bytes for state in states) == size
    for name in names:
        offset, length = span_of(tmp_path, "train-0000", name)
        assert (length == 0) == (name == "i2")
        if length:
            data = read_record_at(tmp_path / "train-0000.tfrecord", offset)
            assert name.encode() in data
    assert image_state(tmp_path, "train-0000", "i2")["reason"]
    with pytest.raises(UserError, match=re.escape("has no state of image 'other'")):
        span_of(tmp_path, "train-0000", "other")


def test_same_input_gives_the_same_bytes(tmp_path, pixels):
    image = row(tmp_path / "a.png", coco(tmp_path, [polygon()]))
    digests = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        prepare(tmp_path / name, image)
        files = ("train-0000.tfrecord", "train-0000.json")
        digests.add(tuple((tmp_path / name / file).read_bytes() for file in files))
    assert len(digests) == 1


def test_parts_do_not_depend_on_other_images(tmp_path):
    images = [row(tmp_path / f"{n}.png", None, f"i{n}") for n in range(200)]
    images = [Image(i.image, f"P{n}", i.path, None, None, "", "", n) for n, i in enumerate(images)]
    settings = SplitSettings()
    parts = parts_of(images, 3, settings)
    assert {name.split("-")[0] for name in parts} == {"train", "valid", "test"}
    assert len(parts) == 9 and sum(len(part.images) for part in parts.values()) == 200
    fewer = parts_of(images[::2], 3, settings)
    assert all(set(part.images) <= set(parts[name].images) for name, part in fewer.items())
    assert part_of("i1", "", 1) == "new-0000"
