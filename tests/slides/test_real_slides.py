"""Slides from real scanners, and files that only look like slides, through the command."""

import io

import pytest
from PIL import Image

# Every file of the folder; a new one without an expectation fails.
EXPECTED = {
    "cmu-1-small-region.svs": None,
    "test3-TRITC-2-560.ndpi": None,
    "broken.svs": "no slide format that OpenSlide knows (1001 bytes)",
    "openslide-unopenable.tiff": "it cannot be opened: Unsupported TIFF compression: 52479",
}


def test_no_real_slide_is_left_out(shared_data):
    files = {path.name for path in (shared_data / "wsi").iterdir() if path.is_file()}
    assert files == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_real_file_reaches_its_state(shared_data, tile, name):
    outcome = tile(shared_data / "wsi" / name, size=224)
    assert outcome.process.returncode == 0, outcome.process.stderr
    assert outcome.files == ["S1.jpg", "S1.json", "S1.parquet", "S1.png", "S1.tfrecord"]
    reason = EXPECTED[name]
    if reason is None:
        assert (outcome.state["state"], outcome.state["reason"]) == ("tiled", None)
    else:
        assert outcome.state["state"] == "failed"
        assert outcome.state["reason"].startswith(reason)
        assert outcome.tiles == []
        assert outcome.state["tiles"]["kept"] == 0
    assert outcome.state["source"]["name"] == name


def test_the_aperio_slide_gives_its_tiles_at_its_own_scale(shared_data, tile):
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
    assert (state["mpp_told"], state["contradictions"]) == ({"file": 0.499, "objective": 0.5}, [])
    assert state["reading"] == {"by": "own tiles", "why": None, "compared": 4}
    assert state["tiles"]["kept"] == 45
    assert state["tiles"]["dropped"] == {"background": 72}
    assert len(outcome.tiles) == 45
    with Image.open(outcome.folder / "S1.jpg") as overview:
        assert overview.size == (round(2220 / 14), round(2967 / 14))


def test_the_aperio_slide_gives_its_tiles_at_a_wanted_scale(shared_data, tile):
    outcome = tile(shared_data / "wsi/cmu-1-small-region.svs", size=224, mpp=1)
    grid = outcome.state["grid"]
    assert grid["extent"] == pytest.approx(224 / 0.499)
    assert (grid["resampled"], grid["columns"], grid["rows"]) == (True, 4, 6)
    for one in outcome.tiles:
        assert one.mpp == 1
        with Image.open(io.BytesIO(one.image)) as picture:
            assert picture.size == (224, 224)


def test_the_fluorescence_slide_is_known_for_what_it_is(shared_data, tile):
    state = tile(shared_data / "wsi/test3-TRITC-2-560.ndpi", size=224).state
    assert state["source"]["vendor"] == "hamamatsu"
    assert state["source"]["bytes"] == 3_064_887
    assert state["mpp"] == pytest.approx(0.228175)
    assert len(state["source"]["levels"]) == 7
    assert state["light"] == "fluorescence"
    assert state["reading"]["by"] == "openslide"
    assert state["reading"]["why"] == "a file of the format hamamatsu"
