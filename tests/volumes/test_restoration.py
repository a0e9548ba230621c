"""From scores on the prepared grid to a NIfTI file with the original geometry."""

import gzip
import tracemalloc

import nibabel
import numpy as np
import pytest
from known_volumes import (
    LABELS,
    affine_of,
    all_orientations,
    dice,
    ellipsoid,
    head,
    tumour,
    write_as,
    write_nifti,
)
from scipy import ndimage

from gigatile.volumes.geometry import compare, geometry_of
from gigatile.volumes.grid import Grid, forward_labels, plan_grid
from gigatile.volumes.reader import open_volume
from gigatile.volumes.restoration import Restorer, write_segmentation

BIG = (64, 56, 48)


def highest(scores: np.ndarray) -> np.ndarray:
    return scores.argmax(axis=-1).astype(np.uint8)


def scores_of(labels: np.ndarray) -> np.ndarray:
    return np.eye(len(LABELS) + 1, dtype=np.float32)[labels]


def restored(labels: np.ndarray, grid: Grid, planes: int = 3) -> np.ndarray:
    """Return prepared labels on the file's grid, restored from scores."""
    restorer = Restorer(grid, highest)
    for first in range(0, len(labels), planes):
        restorer.add(scores_of(labels[first : first + planes]))
    return restorer.labels()


def case(tmp_path, labels, code, affine=None, **kind):
    """Return the geometry, labels and path of a new file."""
    path = write_as(
        tmp_path / "s.nii", labels, affine_of() if affine is None else affine, code, **kind
    )
    volume = open_volume(path)
    return geometry_of(volume), volume.read_labels(LABELS), path


@pytest.mark.parametrize("code", all_orientations())
def test_restoration_without_resampling_is_exact(tmp_path, code):
    geometry, labels, _ = case(tmp_path, tumour(), code, affine_of((1, 1.2, 3), rotated=12))
    grid = plan_grid(geometry, None)
    boxes = (grid, grid.crop_to((3, 4, 5), (20, 19, 17)), grid.crop_to((0, 5, 2), (24, 22, 18)))
    for planes, cropped in enumerate(boxes, 1):
        prepared = forward_labels(labels, cropped)
        assert np.count_nonzero(prepared) == np.count_nonzero(labels)
        restored_labels = restored(prepared, cropped, planes)
        assert restored_labels.dtype == np.uint8
        np.testing.assert_array_equal(restored_labels, labels)


@pytest.mark.parametrize("code", all_orientations())
@pytest.mark.parametrize("spacing", [(0.9, 0.8, 0.7), (1.0, 1.0, 1.0)])
def test_restoration_after_resampling_is_nearly_exact(tmp_path, code, spacing):
    affine = affine_of((1.0, 1.2, 2.5), rotated=12)
    geometry, labels, _ = case(tmp_path, tumour(BIG), code, affine)
    grid = plan_grid(geometry, spacing).crop_to((7, 13, 13), (48, 50, 47))
    assert grid.resampled
    restored_labels = restored(forward_labels(labels, grid), grid)
    assert restored_labels.shape == labels.shape
    for value in LABELS.values():
        assert dice(restored_labels == value, labels == value) >= 0.98
    assert dice(restored_labels > 0, labels > 0) >= 0.99


def test_restoration_of_integer_factors_is_exact(tmp_path):
    geometry, labels, _ = case(tmp_path, tumour(), "LPS")
    grid = plan_grid(geometry, (0.5, 0.5, 0.25)).crop_to((3, 4, 5), (20, 19, 17))
    np.testing.assert_array_equal(restored(forward_labels(labels, grid), grid), labels)


@pytest.mark.parametrize("spacing", [(0.8, 0.7, 0.9), (1.5, 1.3, 1.7), (2.9, 1, 1), None])
def test_planes_give_the_same_as_the_whole_volume(tmp_path, spacing):
    """Compared with scipy's interpolation of all scores in memory."""
    geometry, _, _ = case(tmp_path, tumour(), "PIR")
    grid = plan_grid(geometry, spacing).crop_to((4, 3, 2), (22, 18, 15))
    rng = np.random.default_rng(5)
    noise = ndimage.gaussian_filter(rng.normal(size=(*grid.shape, 4)), (2, 2, 2, 0))
    scores = noise.astype(np.float32)
    restorer = Restorer(grid, highest)
    restorer.add(scores[:2])
    restorer.add(scores[2:])
    result = grid.canonical(restorer.labels())
    indices = np.stack(np.meshgrid(*map(np.arange, grid.canonical_shape), indexing="ij"))
    scale = (np.array(grid.resampled_shape) / grid.canonical_shape)[:, None, None, None]
    start = np.array(grid.crop_start)[:, None, None, None]
    positions = (indices + 0.5) * scale - 0.5 - start
    sides = np.array(grid.shape)[:, None, None, None]
    inside = ((positions >= -0.5) & (positions < sides - 0.5)).all(axis=0)
    whole = [
        ndimage.map_coordinates(scores[..., k], positions, order=1, mode="nearest")
        for k in range(4)
    ]
    whole = np.stack(whole, -1)
    best = np.sort(whole, -1)
    clear = inside & (best[..., -1] - best[..., -2] > 1e-5)
    np.testing.assert_array_equal(result[clear], highest(whole)[clear])
    assert clear.sum() > 0.99 * inside.sum()
    assert not result[~inside].any()


def test_restorer_keeps_only_a_few_planes(tmp_path):
    shape = (160, 60, 60)
    geometry, _, _ = case(tmp_path, ellipsoid(shape, 0.4).astype(np.uint8), "RAS")
    grid = plan_grid(geometry, (0.8, 0.8, 0.8))
    plane = np.zeros((1, *grid.shape[1:], 4), np.float32)
    tracemalloc.start()
    restorer = Restorer(grid, highest)
    for _ in range(grid.shape[0]):
        restorer.add(plane)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < np.prod(shape) + 12 * plane.nbytes


def test_wrong_number_or_size_of_planes_is_refused(tmp_path):
    geometry, labels, _ = case(tmp_path, tumour(), "RAS")
    grid = plan_grid(geometry, None)
    restorer = Restorer(grid, highest)
    restorer.add(scores_of(labels[:20]))
    with pytest.raises(ValueError, match="only 20 of 26 planes were added"):
        restorer.labels()
    with pytest.raises(ValueError, match="do not fit"):
        restorer.add(scores_of(labels[:7]))
    with pytest.raises(ValueError, match="do not fit"):
        restorer.add(scores_of(labels[:1, :-1]))


# --- The file


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize(("sform", "qform"), [(1, 1), (2, 0), (0, 2), (4, 1), (0, 0)])
@pytest.mark.parametrize("code", ["LPS", "LAS"])  # a rotation, and a reflection
def test_segmentation_has_the_original_geometry(tmp_path, code, second, big_endian, sform, qform):
    affine = affine_of((0.9, 1.1, 2.7), rotated=14)
    kind = {"second": second, "big_endian": big_endian, "sform": sform, "qform": qform}
    geometry, labels, path = case(tmp_path, tumour(), code, affine, **kind)
    grid = Grid.from_json(plan_grid(geometry, None).to_json())
    out = tmp_path / "p.nii.gz"
    path.rename(tmp_path / "gone.nii")
    write_segmentation(out, labels, grid)
    original, written = nibabel.load(tmp_path / "gone.nii"), nibabel.load(out)
    assert type(original) is type(written)
    np.testing.assert_array_equal(written.affine, original.affine)
    for kind in ("sform", "qform"):
        written_form, original_form = (
            getattr(image.header, f"get_{kind}")(coded=True) for image in (written, original)
        )
        assert written_form[1] == original_form[1]
        if written_form[1]:
            np.testing.assert_array_equal(written_form[0], original_form[0])
    assert written.header.get_zooms() == original.header.get_zooms()
    assert written.header.get_xyzt_units()[0] == "mm"
    assert written.get_data_dtype() == np.uint8
    assert (written.dataobj.slope, written.dataobj.inter) == (1, 0)
    np.testing.assert_array_equal(np.asarray(written.dataobj), labels)
    # Gigatile reads the same.
    reread = open_volume(out)
    np.testing.assert_array_equal(reread.read_labels(LABELS), labels)
    assert compare({"a": geometry, "b": geometry_of(reread)}, "a").difference_mm == 0


def test_missing_spacing_is_taken_from_the_sform(tmp_path):
    path = write_nifti(
        tmp_path / "a.nii", head(), affine_of((1, 2, 3)), qform=0, pixdim=[1, 0, 0, 0, 0, 0, 0, 0]
    )
    grid = plan_grid(geometry_of(open_volume(path)), None)
    write_segmentation(tmp_path / "p.nii", tumour(), grid)
    assert nibabel.load(tmp_path / "p.nii").header.get_zooms() == pytest.approx((1, 2, 3))


def test_segmentation_bytes_are_reproducible(tmp_path):
    geometry, labels, _ = case(tmp_path, tumour(), "LPS")
    grid = plan_grid(geometry, None)
    for name in ("a.nii.gz", "b.nii.gz"):
        write_segmentation(tmp_path / name, labels, grid)
    data = (tmp_path / "a.nii.gz").read_bytes()
    assert data == (tmp_path / "b.nii.gz").read_bytes()
    assert data[3:8] == bytes(5)  # no file name and no time
    write_segmentation(tmp_path / "c.nii", labels, grid)
    assert gzip.decompress(data) == (tmp_path / "c.nii").read_bytes()


def test_labels_of_wrong_shape_or_type_are_refused(tmp_path):
    geometry, labels, _ = case(tmp_path, tumour(), "LPS")
    grid = plan_grid(geometry, None)
    for wrong in (labels[:-1], labels.astype(np.int16)):
        with pytest.raises(ValueError, match="labels are"):
            write_segmentation(tmp_path / "a.nii.gz", wrong, grid)
    assert not (tmp_path / "a.nii.gz").exists()
