"""`tiles.encoding: lossless`: native JPEG tiles are stored without re-encoding."""

import io

import numpy as np
import openslide
import pytest
from known_slides import tissue, write_svs
from outcomes import assert_same_bytes, assert_tiled
from PIL import Image

from gigatile.demo.svs import shrink
from gigatile.records.tile import decode_jpeg, encode_jpeg
from gigatile.settings.tiles import TileSettings


def test_lossless_keeps_native_tiles(pyramid, tile):
    outcome = tile(pyramid, encoding="lossless", size=256)
    state = assert_tiled(outcome)
    assert state["tiles"]["kept"] == 7 * 4
    assert state["settings"]["encoding"] == "lossless"
    handle = openslide.OpenSlide(pyramid)
    for record in outcome.tiles:
        expected = handle.read_region((record.x, record.y), 0, (256, 256)).convert("RGB")
        np.testing.assert_array_equal(record.pixels(), np.asarray(expected))
        with Image.open(io.BytesIO(record.image)) as picture:
            np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), np.asarray(expected))


@pytest.mark.parametrize("coding", ["rgb", "ycbcr"])
def test_lossless_tiles_keep_their_colours_in_tensorflow(tile, tmp_path, coding):
    import tensorflow as tf

    layout = {"subsampling": (1, 1)} if coding == "rgb" else {"subsampling": (2, 2)}
    path = write_svs(tmp_path / "s.svs", tissue(256, 256), compression="jpeg", **layout)
    for record in tile(path, encoding="lossless").tiles:
        decoded = tf.io.decode_jpeg(record.image, dct_method="INTEGER_ACCURATE").numpy()
        np.testing.assert_array_equal(decoded, record.pixels())


def test_lossless_decodes_only_for_pixel_rules(pyramid, tile):
    pixel_rules = dict.fromkeys(("blur", "uniform", "clipped", "stripes"), "off")
    plain = tile(pyramid, encoding="lossless", size=256, **pixel_rules)
    assert assert_tiled(plain)["tiles"]["kept"] == 28
    assert plain.index.contrast.isna().all()
    patch = """
from gigatile.slides import reader_selection, tiff
from gigatile.slides.tiff import TiffLevel
compared = reader_selection.choose_reader

def choose(*args):
    choice = compared(*args)
    TiffLevel.decode = None
    return choice

import gigatile.slides.slide_tiles as slide_tiles
slide_tiles.choose_reader = choose
"""
    settings = {"encoding": "lossless", "size": 256} | pixel_rules
    other = tile(pyramid, folder="other", patch=patch, **settings)
    assert_same_bytes(plain, other)


def test_lossless_keeps_native_tiles_of_a_level(tile, tmp_path):
    """Level 1 is exactly four times smaller."""
    pixels = tissue(1024, 1536)
    path = write_svs(tmp_path / "s.svs", pixels, shrink(pixels, 4), compression="jpeg")
    outcome = tile(path, encoding="lossless", size=64, mpp=2.0)
    assert assert_tiled(outcome)["grid"]["level"] == 1
    assert len(outcome.tiles) == 24
    handle = openslide.OpenSlide(path)
    for record in outcome.tiles:
        expected = handle.read_region((record.x, record.y), 1, (64, 64)).convert("RGB")
        np.testing.assert_array_equal(record.pixels(), np.asarray(expected))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"size": 128},
            "native tiles have 256×256 px, but tiles.size is 128 px, which spans 128×128 px of ",
        ),
        ({"size": 256, "mpp": 0.6}, "tiles.size is 256 px, which spans 307.2×307.2 px of level 0"),
    ],
)
def test_lossless_refuses_unaligned_tiles(pyramid, tile, settings, reason):
    state = tile(pyramid, encoding="lossless", **settings).state
    assert state["state"] == "failed"
    assert state["reason"].startswith(
        "tiles.encoding: lossless stores the slide's native JPEG tiles "
    )
    assert reason in state["reason"]


def test_lossless_refuses_a_slide_without_jpeg_tiles(tile, tmp_path):
    state = tile(write_svs(tmp_path / "s.svs", tissue(128, 128)), encoding="lossless").state
    assert state["reason"].endswith(
        "cannot be read directly: its tiles are ADOBE_DEFLATE, not JPEG"
    )


@pytest.mark.parametrize("position", ["start", "before the scan", "after the end"])
def test_scanner_metadata_is_removed_from_tiles(tile, tmp_path, position):
    """Some scanners write comments into the streams of tiles."""
    secret = b"Jane Doe 1950"
    pixels = tissue(128, 128)
    corners = [(0, 0), (0, 64), (64, 0), (64, 64)]
    streams = [
        encode_jpeg(np.ascontiguousarray(pixels[y : y + 64, x : x + 64]), 90) for y, x in corners
    ]
    # The first stream has no comment, so its header differs from the others'.
    streams[1:] = [_with_comment(stream, secret, position) for stream in streams[1:]]
    path = write_svs(tmp_path / "s.svs", iter(streams), compression="jpeg", shape=(128, 128, 3))
    assert path.read_bytes().count(secret) == 3
    outcome = tile(path, encoding="lossless")
    assert len(outcome.tiles) == 4
    for record, stream in zip(outcome.tiles, streams, strict=True):
        assert secret not in record.image
        np.testing.assert_array_equal(record.pixels(), decode_jpeg(stream))


def _with_comment(stream: bytes, text: bytes, position: str) -> bytes:
    comment = b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text
    offset = {
        "start": 2,
        "before the scan": stream.index(b"\xff\xda"),
        "after the end": len(stream),
    }[position]
    return stream[:offset] + comment + stream[offset:]


def test_stain_and_lossless_exclude_each_other():
    with pytest.raises(ValueError, match="stain: macenko changes pixels, but encoding: lossless"):
        TileSettings(encoding="lossless", stain="macenko")
