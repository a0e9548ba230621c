"""Slides from real scanners, and broken files, tiled by the command."""

import io

import numpy as np
import pytest
from known_slides import write_svs
from PIL import Image

# All files of the folder; a new file without an entry fails the test.
EXPECTED = {
    "cmu-1-small-region.svs": None,
    "test3-TRITC-2-560.ndpi": None,
    "broken.svs": "not a slide format that OpenSlide supports (1001 bytes)",
    "openslide-unopenable.tiff": "it cannot be opened: Unsupported TIFF compression: 52479",
}


def test_every_real_slide_is_tested(shared_data):
    files = {path.name for path in (shared_data / "wsi").iterdir() if path.is_file()}
    assert files == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_real_files_have_the_expected_state(shared_data, tile, name):
    outcome = tile(shared_data / "wsi" / name, size=224)
    assert outcome.process.returncode == 0, outcome.process.stderr
    assert outcome.files == ["S1.jpg", "S1.json", "S1.parquet", "S1.tfrecord"]
    reason = EXPECTED[name]
    if reason is None:
        assert (outcome.state["state"], outcome.state["reason"]) == ("tiled", None)
    else:
        assert outcome.state["state"] == "failed"
        assert outcome.state["reason"].startswith(reason)
        assert outcome.tiles == []
        assert outcome.state["tiles"]["kept"] == 0
    assert outcome.state["source"]["name"] == name


def test_aperio_slide_at_its_scale(shared_data, tile):
    outcome = tile(shared_data / "wsi/cmu-1-small-region.svs", size=224)
    state = outcome.state
    assert (state["mpp"], state["mpp_from"]) == (0.499, "file")
    assert state["grid"] == {
        "size": 224,
        "mpp": 0.499,
        "extent": 224.0,
        "level": 0,
        "scale": [1, 1],
        "resampled": False,
        "columns": 9,
        "rows": 13,
    }
    assert (state["source"]["width"], state["source"]["height"]) == (2220, 2967)
    assert state["source"]["vendor"] == "aperio"
    assert state["source"]["objective_power"] == "20"
    assert state["mpp_by_source"] == {"file": 0.499, "objective": 0.5}
    assert state["contradictions"] == []
    assert state["reading"] == {"by": "native tiles", "why": None, "compared": 4}
    assert state["tiles"]["kept"] == 49
    assert state["tiles"]["dropped"] == {"background": 68}
    assert len(outcome.tiles) == 49
    with Image.open(outcome.folder / "S1.jpg") as overview:
        assert overview.size == (round(2220 / 14), round(2967 / 14))


def test_aperio_slide_at_a_requested_scale(shared_data, tile):
    outcome = tile(shared_data / "wsi/cmu-1-small-region.svs", size=224, mpp=1)
    grid = outcome.state["grid"]
    assert grid["extent"] == pytest.approx(224 / 0.499)
    assert (grid["resampled"], grid["columns"], grid["rows"]) == (True, 4, 6)
    for record in outcome.tiles:
        assert record.mpp == 1
        with Image.open(io.BytesIO(record.image)) as picture:
            assert picture.size == (224, 224)


def test_fluorescence_slide_is_recognised(shared_data, tile):
    state = tile(shared_data / "wsi/test3-TRITC-2-560.ndpi", size=224).state
    assert state["source"]["vendor"] == "hamamatsu"
    assert state["source"]["bytes"] == 3_064_887
    assert state["mpp"] == pytest.approx(0.228175)
    assert len(state["source"]["levels"]) == 7
    assert state["illumination"] == "fluorescence"
    assert state["reading"]["by"] == "openslide"
    assert state["reading"]["why"] == "native tiles are not supported for the format hamamatsu"


# --- Images of real tissue as slides


def as_slide(shared_data, name: str, path):
    """Write one of the images as a slide with one level."""
    with Image.open(shared_data / f"wsi/png/{name}.png") as picture:
        return write_svs(path, np.asarray(picture.convert("RGB")), compression="jpeg")


def test_red_pen_is_marked_or_dropped(shared_data, tile, tmp_path):
    path = as_slide(shared_data, "tcga-red-pen", tmp_path / "s.svs")
    marked = tile(path, folder="marked")
    index = marked.index
    ink = index.pen_red > 0.05
    assert 5 <= ink.sum() <= 40
    assert (index[["pen_green", "pen_blue", "pen_black"]].to_numpy() < 0.05).all()
    kept = index.dropped == ""
    assert list(index.marks[kept].str.contains("pen")) == list(ink[kept])
    dropped = tile(path, pen="drop", folder="dropped")
    assert dropped.state["tiles"]["dropped"]["pen"] == marked.state["tiles"]["marked"]["pen"]
    with_ink = set(zip(index.x[ink], index.y[ink], strict=True))
    assert with_ink and not with_ink & {(record.x, record.y) for record in dropped.tiles}


def test_nearly_white_slide_keeps_only_tissue(shared_data, tile, tmp_path):
    path = as_slide(shared_data, "almost-white-2", tmp_path / "s.svs")
    outcome = tile(path, uniform="drop")
    index = outcome.index
    assert (index.dropped != "").mean() > 0.75
    # The tissue is in the upper part, and every kept tile has contrast.
    assert 0 < len(outcome.tiles) < 20
    assert (index.contrast[index.dropped == ""] >= 8).all()


def test_real_lung_tissue_is_kept_without_marks(shared_data, tile, tmp_path):
    state = tile(as_slide(shared_data, "tcga-lung-rgb", tmp_path / "s.svs")).state
    assert state["tiles"]["kept"] > 40
    assert state["tiles"]["marked"].get("pen", 0) == 0
    assert state["tiles"]["marked"].get("blur", 0) <= 2
