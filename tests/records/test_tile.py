"""Tiles are decoded like by Pillow, and damaged tiles are refused."""

import io

import numpy as np
import pytest
from PIL import Image

from gigatile.errors import UserError
from gigatile.records import Tile, decode_tile, encode_tile
from gigatile.records.tile import decode_jpeg, encode_jpeg, has_few_colours, jpeg_shape


def texture(width: int, height: int) -> np.ndarray:
    """Return smooth colours with noise, to exercise every step of a decoder."""
    random = np.random.default_rng([width, height])
    coarse = Image.fromarray(random.integers(0, 256, (5, 5, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    noise = random.integers(-30, 31, (height, width, 3))
    return np.clip(smooth + noise, 0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray, **options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def with_pillow(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("size", [(1, 1), (7, 9), (16, 16), (33, 31), (224, 224), (512, 300)])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_pixels_equal_those_of_pillow(size, subsampling):
    for quality in (40, 75, 90, 100):
        data = jpeg(texture(*size), quality=quality, subsampling=subsampling)
        expected = with_pillow(data)
        pixels = decode_jpeg(data)
        assert pixels.dtype == np.uint8
        assert jpeg_shape(data) == expected.shape
        np.testing.assert_array_equal(pixels, expected)


def test_grey_and_progressive_images_are_decoded():
    grey = jpeg(texture(50, 40)[:, :, 0])
    np.testing.assert_array_equal(decode_jpeg(grey), with_pillow(grey))
    progressive = jpeg(texture(50, 40), progressive=True)
    np.testing.assert_array_equal(decode_jpeg(progressive), with_pillow(progressive))


def test_pixels_are_written_only_to_the_target():
    images = np.full((3, 40, 50, 3), 7, np.uint8)
    data = encode_jpeg(texture(50, 40), 90)
    pixels = decode_jpeg(data, into=images[1])
    assert np.shares_memory(pixels, images)
    np.testing.assert_array_equal(images[1], with_pillow(data))
    assert (images[[0, 2]] == 7).all()


@pytest.mark.parametrize("size", [(49, 40), (40, 50), (25, 80), (51, 41), (500, 500)])
def test_image_of_another_shape_is_refused(size):
    with pytest.raises(ValueError, match=r"expected|too small"):
        decode_jpeg(encode_jpeg(texture(*size), 90), into=np.empty((40, 50, 3), np.uint8))


def test_truncated_image_is_refused():
    data = encode_jpeg(texture(64, 64), 90)
    # The last two bytes are the end marker.
    for length in range(len(data)):
        with pytest.raises(ValueError):
            decode_jpeg(data[:length])


def test_image_that_libjpeg_would_guess_is_refused():
    """A part of the data is 0, which Pillow decodes as grey without an error."""
    data = bytearray(encode_jpeg(texture(64, 64), 90))
    data[-600:-300] = bytes(300)
    assert with_pillow(bytes(data)).shape == (64, 64, 3)
    with pytest.raises(ValueError, match="Corrupt JPEG data"):
        decode_jpeg(bytes(data))


@pytest.mark.parametrize("data", [b"", b"x", b"not a JPEG", b"\xff\xd8\xff\xd9"])
def test_data_without_jpeg_are_refused(data):
    for read in (decode_jpeg, jpeg_shape):
        with pytest.raises(ValueError):
            read(data)


def test_damaged_image_names_its_tile():
    whole = encode_jpeg(texture(32, 32), 90)
    tile = Tile(whole[:-20], "S7", 320, 64, 32.0, 0.5, 1.0)
    with pytest.raises(UserError, match=r"^slide S7: the image of the tile at \(320, 64\) is dam"):
        tile.pixels()


def test_whole_numbers_are_written_as_floats():
    tile = Tile(image=b"", slide="S1", x=0, y=0, extent=32, mpp=1, tissue=1)
    extent, mpp = decode_tile(encode_tile(tile)).extent, decode_tile(encode_tile(tile)).mpp
    assert (type(extent), type(mpp)) == (float, float)


@pytest.mark.parametrize("colours", [1, 2, 30, 63, 64, 65, 500])
def test_few_colours_are_fewer_than_64(colours: int) -> None:
    random = np.random.default_rng(colours)
    palette = np.unique(random.integers(0, 256, (3 * colours, 3), np.uint8), axis=0)
    palette = random.permutation(palette)[:colours]
    assert len(palette) == colours
    for height, width in ((96, 96), (64, 40)):
        chosen = random.integers(0, colours, height * width)
        chosen[:colours] = np.arange(colours)
        pixels = palette[random.permutation(chosen)].reshape(height, width, 3)
        assert has_few_colours(pixels) == (colours < 64)
    rare = np.full((96 * 96, 3), 240, np.uint8)  # the last pixels only, which steps leave out
    rare[-colours:] = palette
    known = len(np.unique(rare, axis=0))
    assert has_few_colours(rare.reshape(96, 96, 3)) == (known < 64)
