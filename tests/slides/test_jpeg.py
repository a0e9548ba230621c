"""Complete JPEG streams without decoding them."""

import io

import numpy as np
import pytest
from known_slides import tissue
from PIL import Image

from gigatile.records.tile import decode_jpeg, encode_jpeg
from gigatile.slides.jpeg import clean_header, clean_scans, jpeg_header

PIXELS = tissue(64, 96)
SECRET = b"Jane Doe 1950"
COMMENT = b"\xff\xfe" + (len(SECRET) + 2).to_bytes(2, "big") + SECRET
EXIF = b"\xff\xe1" + (len(SECRET) + 2).to_bytes(2, "big") + SECRET


def coded(**options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, "JPEG", quality=90, **options)
    return buffer.getvalue()


def completed(stream: bytes, tables: bytes | None = None) -> bytes:
    header, position = clean_header(stream)
    return jpeg_header(tables, ycbcr=True) + header + clean_scans(stream, position, 96, 64)


STREAMS = {
    "baseline": coded(),
    "progressive": coded(progressive=True),
    "restarts": coded(restart_marker_rows=1),
    "4:4:4": coded(subsampling=0),
    "optimised": coded(optimize=True),
}


@pytest.mark.parametrize("name", STREAMS)
def test_clean_stream_has_the_same_pixels_and_no_metadata(name):
    stream = STREAMS[name]
    scans = [i for i in range(len(stream)) if stream[i : i + 2] == b"\xff\xda"]
    assert (len(scans) > 3) == (name == "progressive")
    expected = decode_jpeg(stream)
    for position in (2, *scans, len(stream)):
        for more in (COMMENT, EXIF, COMMENT + EXIF + b"\xff"):
            if position == len(stream) or not more.endswith(b"\xff"):
                whole = completed(stream[:position] + more + stream[position:])
                assert SECRET not in whole
                assert np.array_equal(decode_jpeg(whole), expected)


def test_jpeg_tables_are_cleaned():
    stream = STREAMS["baseline"]
    frame = stream.index(b"\xff\xc0")
    quantisation = stream.index(b"\xff\xdb")
    tables = b"\xff\xd8" + COMMENT + stream[quantisation:frame] + EXIF + b"\xff\xd9"
    whole = completed(b"\xff\xd8" + stream[frame:], tables)
    assert SECRET not in whole
    assert np.array_equal(decode_jpeg(whole), decode_jpeg(stream))


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"", "not a JPEG stream"),
        (b"GIF89a", "not a JPEG stream"),
        (b"\xff\xd8", "ends before its pixels"),
        (STREAMS["baseline"][:100], "ends before its pixels"),
        (STREAMS["baseline"][:-2], "has no end"),
        (encode_jpeg(np.zeros((64, 64, 3), np.uint8), 90), "64×64 px, expected 96×64"),
        (b"\xff\xd8" + STREAMS["baseline"][STREAMS["baseline"].index(b"\xff\xda") :], "no frame"),
        (b"\xff\xd8\xff\xdb\x00\x00", "ends before its pixels"),
    ],
)
def test_incomplete_stream_is_refused(stream, reason):
    with pytest.raises(ValueError, match=reason):
        completed(stream)
