"""Read NIfTI files of any kind, and refuse other files."""

import gzip
import tracemalloc

import nibabel
import numpy as np
import pytest
from known_volumes import LABELS, SHAPE, affine_of, head, tumour, write_nifti

from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.reader import MAX_VOXELS, open_volume
from gigatile.volumes.state import CaseSource


def read(path) -> np.ndarray:
    (channel,) = open_volume(path).read_channels()
    assert channel.dtype == np.float32
    return channel


def reason(path, labels: bool = False) -> str:
    """Return why a file is refused, on opening or on reading."""
    with pytest.raises(VolumeError) as refused:
        volume = open_volume(path)
        if labels:
            volume.read_labels(LABELS)
        for _ in volume.read_channels():
            pass
    assert str(path.parent) not in str(refused.value)
    return str(refused.value)


# --- Images


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_all_kinds_of_files_are_read(tmp_path, name, big_endian, second, dtype):
    values = np.arange(np.prod(SHAPE)).reshape(SHAPE) % 120
    stored = values.astype(dtype)
    path = write_nifti(tmp_path / name, stored, big_endian=big_endian, second=second)
    volume = open_volume(path)
    assert (volume.shape, volume.channels, volume.scaled) == (SHAPE, 1, False)
    assert volume.format == ("NIfTI-2" if second else "NIfTI-1")
    assert CaseSource.from_volume(volume).byte_order == ("big" if big_endian else "little")
    np.testing.assert_array_equal(read(path), values)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
@pytest.mark.parametrize("big_endian", [False, True])
def test_scaled_values_equal_nibabel(tmp_path, dtype, big_endian):
    stored = (head() % 250).astype(dtype)
    path = write_nifti(
        tmp_path / "a.nii.gz", stored, big_endian=big_endian, slope=0.0754, intercept=3100.5
    )
    expected = np.asarray(nibabel.load(path).dataobj)
    assert open_volume(path).scaled
    np.testing.assert_allclose(read(path), expected, rtol=1e-6)


def test_large_integers_are_scaled_before_rounding(tmp_path):
    values = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    stored = (values + 2_000_000_000).astype(np.int32)
    path = write_nifti(tmp_path / "a.nii", stored, slope=1.0, intercept=-2e9)
    np.testing.assert_array_equal(read(path), values)


@pytest.mark.parametrize("slope", [0.0, np.nan, np.inf, 1.0])
def test_unset_slope_does_not_scale(tmp_path, slope):
    path = write_nifti(tmp_path / "a.nii", head(), slope=slope)
    assert not open_volume(path).scaled
    np.testing.assert_array_equal(read(path), head())


def test_content_decides_not_the_file_name(tmp_path):
    packed = write_nifti(tmp_path / "a.nii.gz", head())
    plain = write_nifti(tmp_path / "b.nii", head())
    np.testing.assert_array_equal(read(packed.rename(tmp_path / "c.nii")), head())
    np.testing.assert_array_equal(read(plain.rename(tmp_path / "d.nii.gz")), head())


@pytest.mark.parametrize("axes", [(3,), (1, 3), (3, 1, 1)])
def test_channels_are_read_one_by_one(tmp_path, axes):
    channels = [head(seed=seed) for seed in (1, 2, 3)]
    stored = np.stack(channels, axis=3).reshape(*SHAPE, *axes)
    volume = open_volume(write_nifti(tmp_path / "a.nii.gz", stored))
    assert (volume.shape, volume.channels) == (SHAPE, 3)
    # The channels do not share memory.
    for channel, expected in zip(list(volume.read_channels()), channels, strict=True):
        np.testing.assert_array_equal(channel, expected)


def test_trailing_axes_of_one_are_dropped(tmp_path):
    volume = open_volume(write_nifti(tmp_path / "a.nii", head()[..., None, None]))
    assert (volume.shape, volume.channels) == (SHAPE, 1)


def test_gzip_of_several_members_is_read(tmp_path):
    path = write_nifti(tmp_path / "a.nii", head())
    data = path.read_bytes()
    path.write_bytes(gzip.compress(data[:5000]) + gzip.compress(data[5000:]) + b"\0" * 64)
    np.testing.assert_array_equal(read(path), head())


def test_header_extensions_are_skipped(tmp_path):
    path = write_nifti(tmp_path / "a.nii", head(), vox_offset=352 + 48)
    data = path.read_bytes()
    path.write_bytes(data[:352] + b"extension".ljust(48) + data[352:])
    np.testing.assert_array_equal(read(path), head())


# --- Segmentations


@pytest.mark.parametrize(
    ("dtype", "slope", "intercept"),
    [("u1", None, 0), ("f4", None, 0), ("i4", 2**-31 * 6, 0), ("i2", 0.5, -1), ("f8", 1, 1e-4)],
)
def test_labels_are_rounded_within_tolerance(tmp_path, dtype, slope, intercept):
    stored = np.rint((tumour() - float(intercept)) / (slope or 1)).astype(dtype)
    path = write_nifti(
        tmp_path / "s.nii.gz", stored, slope=slope and slope * (1 + 1e-8), intercept=intercept
    )
    labels = open_volume(path).read_labels(LABELS)
    assert labels.dtype == np.uint8
    np.testing.assert_array_equal(labels, tumour())


def test_undeclared_values_are_listed_with_voxels(tmp_path):
    labels = tumour().astype(np.float32)
    labels[0, 0, :3] = 7
    labels[1, 0, 0] = 2.5
    labels[1, 0, 1:6] = -1
    labels[1, 0, 7:9] = np.nan
    labels[1, 0, 10] = 300
    assert reason(write_nifti(tmp_path / "s.nii.gz", labels), labels=True) == (
        "it has values that volumes.labels does not declare: -1 (5 voxels), 7 (3 voxels), "
        "nan (2 voxels), 2.5 (1 voxel), 300 (1 voxel); declared: background 0, edema 1, "
        "non_enhancing 2, enhancing 3"
    )


def test_image_is_refused_as_segmentation(tmp_path):
    path = write_nifti(tmp_path / "s.nii.gz", head())
    assert reason(path, labels=True).startswith(
        "it is not a segmentation: it has more than 100 different values, such as "
    )


# --- Refused files


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_text_files_are_recognised(tmp_path, name):
    path = tmp_path / name
    for text, expected in {
        "": "the file is empty (0 bytes)",
        "\n<!DOCTYPE html>\n<html><body>é</body>": (
            "it is an HTML page, not a NIfTI file; the download probably failed"
        ),
        "version https://git-lfs.github.com/spec/v1\noid sha256:0": (
            "it is a Git LFS pointer, not the file itself; run `git lfs pull`"
        ),
        "404: Not Found": "it is text, not a NIfTI file; it starts with '404: Not Found'",
    }.items():
        path.write_text(text)
        assert reason(path) == expected
        if text:
            path.write_bytes(gzip.compress(text.encode()))
            assert reason(path) == expected


def test_other_formats_are_recognised(tmp_path):
    path = write_nifti(tmp_path / "a.nii", head())
    data = bytearray(path.read_bytes())
    for start, expected in {
        b"PK\3\4": "it is a zip archive, not a NIfTI file",
        bytes(128) + b"DICM": (
            "it is a DICOM file, not NIfTI; convert its series, for example with dcm2niix"
        ),
        bytes(range(256)): ("it is not a NIfTI file: it has no header of NIfTI-1 or NIfTI-2"),
    }.items():
        path.write_bytes(start.ljust(1000, b"\0"))
        assert reason(path) == expected
    for magic, expected in {
        b"ni1\0": "it is the header of a pair of files (.hdr, .img); convert them to one .nii.gz",
        b"\0\0\0\0": ("it is ANALYZE 7.5, which has no orientation, or a damaged NIfTI file"),
    }.items():
        data[344:348] = magic
        path.write_bytes(data)
        assert reason(path) == expected


def test_missing_file_and_folder_are_refused(tmp_path):
    assert reason(tmp_path / "none.nii.gz") == "the file does not exist"
    (tmp_path / "folder.nii.gz").mkdir()
    assert reason(tmp_path / "folder.nii.gz") == "it is a folder, not a file"


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("share", [0.0001, 0.01, 0.3, 0.9, 0.9999])
def test_truncated_file_is_refused(tmp_path, name, share):
    path = write_nifti(tmp_path / name, head())
    data = path.read_bytes()
    path.write_bytes(data[: max(3, int(share * len(data)))])
    expected = reason(path)
    assert "truncated" in expected or len(path.read_bytes()) < 20


def test_truncated_header_is_refused(tmp_path):
    for second, size in ((False, 347), (False, 200), (True, 539)):
        path = write_nifti(tmp_path / "a.nii", head(), second=second)
        path.write_bytes(path.read_bytes()[:size])
        assert reason(path) == f"its header is truncated after {size} bytes"


def test_gzip_without_its_last_byte_is_refused(tmp_path):
    path = write_nifti(tmp_path / "a.nii.gz", head())
    path.write_bytes(path.read_bytes()[:-1])
    assert reason(path) == f"its gzip is truncated after {352 + head().nbytes:,} bytes of data"


def test_gzip_with_too_little_data_is_refused(tmp_path):
    path = write_nifti(tmp_path / "a.nii", head())
    data = path.read_bytes()
    path.write_bytes(gzip.compress(data[:-100]))
    assert reason(path) == (
        f"it is truncated: its header implies {len(data):,} bytes, it has {len(data) - 100:,}"
    )
    path.write_bytes(gzip.compress(b""))
    assert reason(path) == "its gzip is empty"


def test_changed_byte_in_a_gzip_is_detected(tmp_path):
    """The checksum is at the end, so the reader must not stop after the last voxel."""
    original = np.rint(head())
    path = write_nifti(tmp_path / "a.nii.gz", original.astype(np.int16))
    data = path.read_bytes()
    for position in np.linspace(40, len(data) - 5, 60).astype(int):
        changed = bytearray(data)
        changed[position] ^= 0x10
        path.write_bytes(changed)
        try:
            values = read(path)
        except VolumeError:
            continue
        # Some changes decode to the same data.
        np.testing.assert_array_equal(values, original, f"byte {position} of {len(data)}")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"dim": [0, 26, 22, 18, 1, 1, 1, 1]}, "it has 0 axes"),
        ({"dim": [9, 26, 22, 18, 1, 1, 1, 1]}, "it has 9 axes"),
        ({"dim": [3, 26, -22, 18, 1, 1, 1, 1]}, "it has 26×-22×18 voxels"),
        ({"dim": [3, 26, 0, 18, 1, 1, 1, 1]}, "it has 26×0×18 voxels"),
        ({"dim": [2, 26, 22, 1, 1, 1, 1, 1]}, "it is not a volume: it has 26×22 voxels"),
        ({"dim": [3, 26, 22, 1, 1, 1, 1, 1]}, "it is not a volume: it has 26×22×1 voxels"),
        ({"dim": [5, 2, 2, 2, 2, 2, 1, 1]}, "expected three or four axes"),
        ({"dim": [3, 32767, 32767, 32767, 1, 1, 1, 1]}, f"more than {MAX_VOXELS:,}"),
        ({"dim": [3, 26, 22, 1000, 1, 1, 1, 1]}, "it is truncated: its header implies"),
        ({"datatype": 77}, "unknown data type 77"),
        ({"datatype": 32, "bitpix": 64}, "it contains complex numbers"),
        ({"datatype": 1536, "bitpix": 128}, "it contains values of data type 1536"),
        ({"datatype": 128, "bitpix": 24}, "it contains colours"),
        ({"datatype": 64}, "its header is inconsistent: float64 values of 32 bits"),
        ({"vox_offset": 0}, "vox_offset is 0"),
        ({"vox_offset": 352.5}, "vox_offset is 352.5"),
        ({"vox_offset": np.nan}, "vox_offset is nan"),
        ({"vox_offset": 1e9}, "it is truncated"),
        ({"scl_slope": 2.0, "scl_inter": np.nan}, "scl_inter is nan"),
    ],
)
def test_invalid_header_is_refused(tmp_path, fields, expected):
    path = write_nifti(tmp_path / "a.nii", head(), **fields)
    assert expected in reason(path)


def test_random_header_gives_a_reason(tmp_path):
    path = write_nifti(tmp_path / "a.nii", head())
    data = path.read_bytes()
    rng = np.random.default_rng(3)
    for _ in range(300):
        changed = bytearray(data)
        for position in rng.integers(0, 352, 4):
            changed[position] = rng.integers(256)
        path.write_bytes(changed)
        try:
            for channel in open_volume(path).read_channels():
                assert channel.ndim == 3
        except VolumeError as error:
            assert str(error)


def test_state_has_the_facts_of_a_file(tmp_path):
    path = write_nifti(
        tmp_path / "a.nii.gz", head().astype(np.int16), affine_of(), big_endian=True, slope=2.0
    )
    source = CaseSource.from_volume(open_volume(path)).to_json()
    assert source | {"fingerprint": None} == {
        "name": "a.nii.gz",
        "bytes": path.stat().st_size,
        "fingerprint": None,
        "shape": [26, 22, 18],
        "dtype": "int16",
        "byte_order": "big",
        "format": "NIfTI-1",
        "scaled": True,
    }


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "packed.nii.gz"])
def test_wrong_offset_takes_no_memory(tmp_path, name):
    """Skipped bytes must not be kept in memory: up to 2 GB for a file of some kilobytes."""
    path = write_nifti(tmp_path / name, head(), vox_offset=1 << 26)
    if name.startswith("packed"):  # large enough that its gzip could contain so much
        whole = gzip.decompress(path.read_bytes()) + bytes(1 << 20)
        path.write_bytes(gzip.compress(whole, 1) + gzip.compress(bytes(1 << 23), 0)[:200_000])
    tracemalloc.start()
    try:
        reason(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4e6
