"""The geometry of a file, and whether a case's files have the same grid."""

import nibabel
import numpy as np
import pytest
from known_volumes import SHAPE, affine_of, all_orientations, head, write_as, write_nifti

from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.geometry import compare, geometry_of, reorient_like
from gigatile.volumes.reader import open_volume

IMAGE = head()


def geometry(path):
    return geometry_of(open_volume(path))


def write_and_read(tmp_path, affine=None, name="a.nii", **kind):
    return geometry(write_nifti(tmp_path / name, IMAGE, affine, **kind))


# --- A single file


@pytest.mark.parametrize("rotated", [0, 17])
@pytest.mark.parametrize(
    ("codes", "source"), [((1, 1), "sform"), ((2, 0), "sform"), ((0, 2), "qform")]
)
def test_affine_is_from_sform_then_qform(tmp_path, rotated, codes, source):
    affine = affine_of((0.9, 1.1, 5.5), rotated=rotated)
    result = write_and_read(tmp_path, affine, sform=codes[0], qform=codes[1])
    np.testing.assert_allclose(result.affine, affine, atol=1e-5)
    np.testing.assert_allclose(result.spacing, (0.9, 1.1, 5.5), rtol=1e-6)
    assert (result.source, result.orientation, result.warnings) == (source, "RAS", ())
    assert result.voxel_ml == pytest.approx(0.9 * 1.1 * 5.5 / 1000)
    assert (result.oblique > 15) == bool(rotated)
    assert (" rotated by 1" in str(result)) == bool(rotated)


@pytest.mark.parametrize("code", all_orientations()[::5])
def test_orientation_is_the_direction_of_axes(tmp_path, code):
    path = write_as(tmp_path / "a.nii.gz", IMAGE, affine_of((1, 2, 3)), code)
    assert geometry(path).orientation == code


def test_missing_orientation_gives_a_warning(tmp_path):
    path = write_nifti(tmp_path / "a.nii", IMAGE, sform=0, qform=0)
    result = geometry(path)
    np.testing.assert_array_equal(result.affine, nibabel.load(path).affine)
    assert result.source == "pixdim"
    assert result.warnings == (
        "its header has no orientation (neither sform nor qform is set); LAS is assumed, as for "
        "ANALYZE",
    )


def test_different_sform_and_qform_give_a_warning(tmp_path):
    moved = affine_of(origin=(-12, 30, 8))
    qform = nibabel.Nifti1Header()
    qform.set_qform(moved, 1)
    offsets = {f"qoffset_{axis}": qform[f"qoffset_{axis}"] for axis in "xyz"}
    result = write_and_read(tmp_path, **offsets)
    np.testing.assert_array_equal(result.affine, affine_of())
    assert result.warnings == ("its sform and qform differ by up to 3 mm; the sform is used",)
    assert write_and_read(tmp_path, qoffset_z=5.05).warnings == ()


@pytest.mark.parametrize("pixdim", [0, -1, np.nan])
def test_file_without_spacing_is_refused(tmp_path, pixdim):
    for codes in ((0, 0), (0, 1)):
        kind = {"sform": codes[0], "qform": codes[1], "pixdim": [1, 1, pixdim, 1, 0, 0, 0, 0]}
        with pytest.raises(VolumeError, match="its header has no valid spacing: 1×"):
            write_and_read(tmp_path, **kind)
    # The sform has a spacing, too.
    (warning,) = write_and_read(tmp_path, qform=0, pixdim=kind["pixdim"]).warnings
    assert warning.endswith("the spacing of its sform is used")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"srow_z": [0, 0, 0, 5]}, "its sform is singular: its spacing is 1×1×0 mm"),
        ({"srow_z": [1, 0, 0, 5], "srow_x": [1, 0, 0, 5]}, "its sform is singular"),
        ({"srow_z": [0, 0, np.nan, 5]}, "its sform contains NaN or infinity"),
        ({"srow_z": [0, 0, 1e5, 5]}, "1×1×1e+05 mm; must be 0.01-100 mm"),
        ({"srow_z": [0, 0, 1, 1e30]}, "its sform contains 1e+30 mm: it is damaged"),
        ({"srow_x": [1e-4, 0, 0, 5]}, "0.0001×1×1 mm"),
    ],
)
def test_invalid_affine_is_refused_unless_there_is_another(tmp_path, fields, reason):
    with pytest.raises(VolumeError) as refused:
        write_and_read(tmp_path, qform=0, **fields)
    assert reason in str(refused.value)
    result = write_and_read(tmp_path, qform=1, **fields)
    assert result.source == "qform"
    assert result.warnings == (f"{refused.value}; its qform is used",)


def test_qform_that_is_not_a_rotation_is_refused(tmp_path):
    with pytest.raises(VolumeError, match="its qform is not a rotation"):
        write_and_read(tmp_path, sform=0, quatern_b=3.0)


def test_skewed_axes_and_other_units_give_warnings(tmp_path):
    (skewed,) = write_and_read(tmp_path, qform=0, srow_x=[1, 0.1, 0, -12]).warnings
    assert skewed.startswith("its axes deviate from right angles by 5.7°")
    assert write_and_read(tmp_path, xyzt_units=3).warnings == (
        "its header has the unit micrometres; millimetres are assumed",
    )
    (second,) = write_and_read(tmp_path, qform=0, pixdim=[1, 2, 1, 1, 0, 0, 0, 0]).warnings
    assert second == (
        "its header has a spacing of 2×1×1 mm, its sform a spacing of 1×1×1 mm, which is used"
    )


# --- Several files


@pytest.mark.parametrize("rotated", [0, 20, 45])
@pytest.mark.parametrize("code", all_orientations()[::3])
def test_order_of_axes_is_not_a_difference(tmp_path, code, rotated):
    affine = affine_of((0.9, 1.1, 5.5), rotated=rotated)
    first = geometry(write_as(tmp_path / "a.nii", IMAGE, affine, "RAS"))
    path = write_as(tmp_path / "b.nii", IMAGE, affine, code)
    second = geometry(path)
    agreement = compare({"first": first, "second": second}, "first")
    assert (agreement.state, agreement.message) == ("equal", "")
    reoriented = reorient_like(second, first)
    (channel,) = open_volume(path).read_channels()
    np.testing.assert_array_equal(
        reoriented.apply(channel), reorient_like(first, first).apply(IMAGE)
    )


def test_noise_is_equal_with_a_message(tmp_path):
    first = write_and_read(tmp_path, affine_of())
    for distance, state in (
        (0.0005, "equal"),
        (0.004, "noise"),
        (0.09, "noise"),
        (0.11, "different"),
    ):
        second = write_and_read(tmp_path, affine_of(origin=(-12 + distance, 30, 5)))
        agreement = compare({"flair": first, "t1": second}, "flair")
        assert agreement.state == state
        assert agreement.difference_mm == pytest.approx(distance, abs=1e-6)
    # The tolerance is a fraction of the shortest side of a voxel.
    thick = write_and_read(tmp_path, affine_of((1, 1, 5)))
    moved = write_and_read(tmp_path, affine_of((1, 1, 5), origin=(-12, 30, 5.2)))
    assert compare({"flair": thick, "t1": moved}, "flair").state == "different"
    second = write_and_read(tmp_path, affine_of(origin=(-12.004, 30, 5)))
    assert compare({"flair": first, "t1": first, "t2": second}, "flair").message == (
        "its files are up to 4 µm apart (flair and t2), less than a tenth of a voxel; they are "
        "treated as equal"
    )


def test_grids_rotated_by_nearly_45_degrees_are_equal(tmp_path):
    """The names of their axes differ."""
    first, second = (
        write_and_read(tmp_path, affine_of(rotated=rotated)) for rotated in (44.97, 45.03)
    )
    assert first.orientation != second.orientation
    assert compare({"first": first, "second": second}, "first").state == "noise"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"origin": (-12, 30, 7)}, "they differ in the position of their corners by up to 2 mm"),
        ({"rotated": 5}, "they differ in direction by 5."),
        ({"spacing": (1, 1, 1.2)}, "they differ in spacing, the position of their corners"),
        ({"spacing": (1, 1, 1.008)}, "they differ in the position of their corners by up to 0.136"),
    ],
)
def test_differences_are_listed_with_all_grids(tmp_path, change, message):
    first, second = write_and_read(tmp_path), write_and_read(tmp_path, affine_of(**change))
    agreement = compare({"flair": first, "t1": second}, "flair")
    assert agreement.state == "different"
    assert agreement.message.startswith(message)
    assert agreement.message.endswith(f"(flair: {first}; t1: {second})")


def test_different_shapes_are_listed(tmp_path):
    first = write_and_read(tmp_path)
    second = geometry(write_nifti(tmp_path / "b.nii", IMAGE[:-1]))
    reason = compare({"flair": first, "t1": second}, "flair").message
    assert reason == (
        "they differ in shape, the position of their centres by up to 0.5 mm "
        "(flair: 26×22×18 voxels of 1×1×1 mm, RAS; t1: 25×22×18 voxels of 1×1×1 mm, RAS)"
    )
    assert first.shape == SHAPE
