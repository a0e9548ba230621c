"""The encoded pixels of a record: as Pillow reads them, and damaged ones are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage

from gigatile.errors import UserError
from gigatile.records.instances import AnnotatedImage, decode_image, encode_png
from gigatile.records.tile import encode_jpeg

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 13, 3), np.uint8)


def image_of(data: bytes) -> AnnotatedImage:
    return AnnotatedImage(data, "A", 9, 13, None, None)


def test_png_keeps_its_pixels(tmp_path):
    data = encode_png(PIXELS)
    np.testing.assert_array_equal(image_of(data).pixels(), PIXELS)
    (tmp_path / "A.png").write_bytes(data)
    with PillowImage.open(tmp_path / "A.png") as image:
        np.testing.assert_array_equal(np.asarray(image), PIXELS)


def test_jpeg_is_decoded():
    smooth = np.full((9, 13, 3), 90, np.uint8)
    pixels = image_of(encode_jpeg(smooth, 95)).pixels()
    assert pixels.dtype == np.uint8 and abs(pixels.astype(int) - 90).max() <= 1


@settings(max_examples=300)
@given(st.data())
def test_damaged_pixels_are_refused(data):
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "other"]))
    good = {"PNG": encode_png(PIXELS), "JPEG": encode_jpeg(PIXELS, 90), "other": b"\x89PNG"}[kind]
    changed = bytearray(good[: data.draw(st.integers(0, len(good)))])
    for _ in range(data.draw(st.integers(0, 3)) if changed else 0):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        pixels = image_of(bytes(changed)).pixels()
    except UserError as error:
        assert "image A: its pixels are damaged" in str(error)
    else:
        assert pixels.shape == PIXELS.shape and pixels.dtype == np.uint8


def test_pixels_with_16_bits_are_refused():
    """They would be cut to the lower 8 bits."""
    with pytest.raises(UserError, match="its pixels are damaged"):
        image_of(encode_png(PIXELS.astype(np.uint16) * 257)).pixels()


def test_grey_pixels_are_refused():
    with pytest.raises(UserError, match=r"shape \(9, 13\)"):
        image_of(encode_png(PIXELS[..., 0])).pixels()
    with pytest.raises(ValueError):
        decode_image(b"")
