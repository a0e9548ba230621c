"""Regions of slides and images that are annotated in QuPath become records."""

import gzip
import json

import numpy as np
import pytest
import tifffile
from PIL import Image as Picture

from gigatile.cohort.images import Image
from gigatile.instances.preparation import prepare_part
from gigatile.instances.resizing import PADDING
from gigatile.records.instances import read_annotated
from gigatile.settings.instances import InstanceSettings

WIDTH, HEIGHT = 700, 500
SETTINGS = InstanceSettings(categories=("nucleus",))


def square(x, y, side=20, name="nucleus", kind="detection", **more):
    corners = [[x, y], [x + side, y], [x + side, y + side], [x, y + side], [x, y]]
    classified = {} if name is None else {"classification": {"name": name}}
    return {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [corners]},
        "properties": {"objectType": kind, **classified},
        **more,
    }


def region(x, y, width, height, name="Region*"):
    shape = square(0, 0, name=name, kind="annotation")
    right, bottom = x + width, y + height
    corners = [[x, y], [right, y], [right, bottom], [x, bottom], [x, y]]
    shape["geometry"]["coordinates"] = [corners]
    return shape


@pytest.fixture
def pixels() -> np.ndarray:
    random = np.random.default_rng(1)
    values = random.integers(180, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    values[100:120, 200:220] = (90, 40, 120)
    return values


@pytest.fixture
def slide(tmp_path, pixels):
    """Write a tiled TIFF, which OpenSlide opens, with 0.25 µm per pixel and a second level."""
    path = tmp_path / "s.tif"
    with tifffile.TiffWriter(path) as file:
        options = {"tile": (128, 128), "photometric": "rgb", "resolutionunit": "CENTIMETER"}
        file.write(pixels, resolution=(40_000, 40_000), **options)
        half = pixels.reshape(HEIGHT // 2, 2, WIDTH // 2, 2, 3).mean(axis=(1, 3))
        file.write(half.astype(np.uint8), subfiletype=1, **options)
    return path


def prepare(folder, path, features, settings=SETTINGS, name="s.geojson"):
    text = json.dumps({"type": "FeatureCollection", "features": features})
    annotations = folder / name
    if name.endswith(".gz"):
        annotations.write_bytes(gzip.compress(text.encode()))
    else:
        annotations.write_text(text)
    image = Image("S", "P", path, annotations, None, "", "", 2)
    records = folder / "train-0000.tfrecord"
    part = prepare_part("train-0000", [image], settings, records, folder / "train-0000.json")
    return part.images[0], list(read_annotated(records))


@pytest.mark.parametrize("name", ["s.geojson", "s.geojson.gz"])
def test_regions_have_the_pixels_of_level_0_and_their_instances(tmp_path, slide, pixels, name):
    features = [
        region(150, 80, 100, 60),
        square(200, 100),
        region(400, 300, 64, 32),
        square(600, 400),  # in no region
        square(455, 310),  # half of it is in the second region
        square(463, 310),  # 5 % of it are
    ]
    state, records = prepare(tmp_path, slide, features, name=name)
    assert state.state == "prepared", state.reason
    assert (state.regions, state.instances, state.pixels) == (2, {"nucleus": 2}, 6000 + 2048)
    assert (state.width, state.height, state.mpp) == (WIDTH, HEIGHT, 0.25)
    first, second = records
    assert first.region == (150, 80, 250, 140) and second.region == (400, 300, 464, 332)
    np.testing.assert_array_equal(first.pixels(), pixels[80:140, 150:250])
    np.testing.assert_array_equal(second.pixels(), pixels[300:332, 400:464])
    assert first.instances.boxes.tolist() == [[20, 50, 40, 70]]
    assert second.instances.boxes.tolist() == [[10, 55, 30, 64]]
    assert first.mpp == 0.25


def test_regions_are_read_at_the_scale_of_the_settings(tmp_path, slide, pixels):
    settings = SETTINGS.model_copy(update={"mpp": 0.5})
    features = [region(150, 80, 100, 60), square(200, 100)]
    state, (record,) = prepare(tmp_path, slide, features, settings)
    assert (record.height, record.width, record.mpp) == (30, 50, 0.5), state.reason
    assert record.instances.boxes.tolist() == [[10, 25, 20, 35]]
    inside = record.pixels()[10:20, 25:35].astype(int)
    assert np.abs(inside - (90, 40, 120)).max() <= 1
    outside = record.pixels()[:9].astype(int)
    assert outside.min() > 170
    # Between two levels: resized, and the objects stay in place within half a pixel.
    settings = SETTINGS.model_copy(update={"mpp": 0.4})
    _, (record,) = prepare(tmp_path, slide, features, settings)
    # The pixels are those of a grid over the slide, so the region starts up to a pixel earlier.
    left, top, right, bottom = record.region
    assert 148.4 < left <= 150 and 78.4 < top <= 80 and right < 251.6 and bottom < 141.6
    expected = (np.array([100, 200, 120, 220]) - [top, left, top, left]) / 1.6
    np.testing.assert_allclose(record.instances.boxes, [expected], atol=0.51)
    purple = record.pixels()[..., 1] < 110
    rows, columns = (np.flatnonzero(purple.any(axis=axis)) for axis in (1, 0))
    box = [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]
    np.testing.assert_allclose(box, record.instances.boxes[0], atol=1.01)


def test_pixels_outside_the_outline_of_a_region_are_padding(tmp_path, slide, pixels):
    triangle = region(0, 0, 1, 1)
    corners = [[150, 80], [250, 80], [150, 180], [150, 80]]
    triangle["geometry"]["coordinates"] = [corners]
    features = [triangle, square(200, 100), square(225, 160)]
    _, (record,) = prepare(tmp_path, slide, features)
    values = record.pixels()
    assert (values[-1, -1] == PADDING).all() and (values[0, 0] == pixels[80, 150]).all()
    # The second nucleus lies in the box of the region, but outside its outline.
    assert len(record.instances) == 1


def test_objects_without_a_class(tmp_path, slide):
    features = [region(150, 80, 100, 60, name=None), square(200, 100, name=None)]
    _, (record,) = prepare(tmp_path, slide, features)
    assert record.instances.classes.tolist() == [1]
    two = SETTINGS.model_copy(update={"categories": ("nucleus", "cell")})
    state, _ = prepare(tmp_path, slide, [*features, square(200, 100, name="Tumor")], two)
    assert "object 2 has no class, object 3 has the class 'Tumor'; must be one of" in state.reason


def test_cells_have_the_outline_of_the_nucleus_or_of_the_cell(tmp_path, slide):
    cell = square(200, 100, kind="cell")
    cell["nucleusGeometry"] = square(205, 105, side=10)["geometry"]
    features = [region(150, 80, 100, 60), cell]
    for cells, sides in (("nucleus", 10), ("whole", 20)):
        settings = SETTINGS.model_copy(update={"cells": cells})
        _, (record,) = prepare(tmp_path, slide, features, settings)
        assert record.instances.mask(0).shape == (sides, sides)


def test_plain_image_needs_no_region(tmp_path, pixels):
    Picture.fromarray(pixels).save(tmp_path / "a.png")
    state, (record,) = prepare(tmp_path, tmp_path / "a.png", [square(200, 100)])
    assert state.regions == 1 and record.region == (0, 0, WIDTH, HEIGHT)
    np.testing.assert_array_equal(record.pixels(), pixels)
    features = [square(200, 100), region(190, 90, 40, 40)]
    _, (record,) = prepare(tmp_path, tmp_path / "a.png", features)
    np.testing.assert_array_equal(record.pixels(), pixels[90:130, 190:230])
    assert record.instances.boxes.tolist() == [[10, 10, 30, 30]]


@pytest.mark.parametrize(
    ("features", "fault"),
    [
        ([square(200, 100)], "s.geojson has no region. In QuPath, draw annotations of the class"),
        ([region(1, 1, 9, 9), square(690, 490)], "1 object(s) leave the image of 700 × 500"),
        ([region(600, 400, 900, 90)], "1 object(s) leave the image of 700 × 500 pixels"),
        ([{"type": "Feature", "geometry": {"type": "Point", "coordinates": [1, 2]}}], "Point"),
    ],
)
def test_wrong_annotations_are_a_reason(tmp_path, slide, features, fault):
    state, records = prepare(tmp_path, slide, features)
    assert state.state == "failed" and not records
    assert fault in state.reason and str(tmp_path) not in state.reason


def test_slide_without_scale_cannot_be_resized(tmp_path, pixels):
    tifffile.imwrite(tmp_path / "s.tif", pixels, tile=(128, 128), photometric="rgb")
    settings = SETTINGS.model_copy(update={"mpp": 0.5})
    state, _ = prepare(tmp_path, tmp_path / "s.tif", [region(1, 1, 9, 9)], settings)
    assert "the slide does not say its scale" in state.reason


@pytest.mark.parametrize("suffix", [".svs", ".NDPI"])
def test_whole_slide_without_outlines_is_a_reason(tmp_path, slide, suffix):
    path = slide.rename(slide.with_suffix(suffix))
    labels = tmp_path / "labels.png"
    Picture.fromarray(np.zeros((HEIGHT, WIDTH), np.uint8)).save(labels)
    for annotations in (None, labels):
        image = Image("s", "p", path, annotations, None, "", "", 2)
        files = tmp_path / "p.tfrecord", tmp_path / "p.json"
        (state,) = prepare_part("p", [image], SETTINGS, *files).images
        assert state.reason.startswith("a whole slide: only its regions with annotations")


def test_damaged_slide_is_a_reason(tmp_path, slide):
    whole = slide.read_bytes()
    (tmp_path / "cut.svs").write_bytes(whole[: len(whole) // 3])
    state, _ = prepare(tmp_path, tmp_path / "cut.svs", [region(1, 1, 9, 9)])
    assert state.state == "failed" and "unexpected" not in state.reason
