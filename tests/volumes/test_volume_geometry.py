"""Where a file's voxels lie, and whether a case's files agree."""

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


def of(tmp_path, affine=None, name="a.nii", **kind):
    return geometry(write_nifti(tmp_path / name, IMAGE, affine, **kind))


# --- One file


@pytest.mark.parametrize("turned", [0, 17])
@pytest.mark.parametrize(
    ("codes", "source"), [((1, 1), "sform"), ((2, 0), "sform"), ((0, 2), "qform")]
)
def test_affine_is_from_sform_then_qform(tmp_path, turned, codes, source):
    affine = affine_of((0.9, 1.1, 5.5), turned=turned)
    found = of(tmp_path, affine, sform=codes[0], qform=codes[1])
    np.testing.assert_allclose(found.affine, affine, atol=1e-5)
    np.testing.assert_allclose(found.spacing, (0.9, 1.1, 5.5), rtol=1e-6)
    assert (found.source, found.orientation, found.warnings) == (source, "RAS", ())
    assert found.voxel_ml == pytest.approx(0.9 * 1.1 * 5.5 / 1000)
    assert (found.oblique > 15) == bool(turned)
    assert (" rotated by 1" in str(found)) == bool(turned)


@pytest.mark.parametrize("code", all_orientations()[::5])
def test_orientation_is_the_direction_of_axes(tmp_path, code):
    path = write_as(tmp_path / "a.nii.gz", IMAGE, affine_of((1, 2, 3)), code)
    assert geometry(path).orientation == code


def test_missing_orientation_gives_a_warning(tmp_path):
    path = write_nifti(tmp_path / "a.nii", IMAGE, sform=0, qform=0)
    found = geometry(path)
    np.testing.assert_array_equal(found.affine, nibabel.load(path).affine)
    assert found.source == "pixdim"
    assert found.warnings == (
        "its header has no orientation (neither sform nor qform is set); LAS is assumed, as for "
        "ANALYZE",
    )


def test_different_sform_and_qform_give_a_warning(tmp_path):
    moved = affine_of(origin=(-12, 30, 8))
    qform = nibabel.Nifti1Header()
    qform.set_qform(moved, 1)
    offsets = {f"qoffset_{axis}": qform[f"qoffset_{axis}"] for axis in "xyz"}
    found = of(tmp_path, **offsets)
    np.testing.assert_array_equal(found.affine, affine_of())
    assert found.warnings == ("its sform and qform differ by up to 3 mm; the sform is used",)
    assert of(tmp_path, qoffset_z=5.05).warnings == ()


@pytest.mark.parametrize("pixdim", [0, -1, np.nan])
def test_file_without_spacing_is_refused(tmp_path, pixdim):
    for codes in ((0, 0), (0, 1)):
        kind = {"sform": codes[0], "qform": codes[1], "pixdim": [1, 1, pixdim, 1, 0, 0, 0, 0]}
        with pytest.raises(VolumeError, match="its header has no valid spacing: 1×"):
            of(tmp_path, **kind)
    # The sform tells it too.
    (warning,) = of(tmp_path, qform=0, pixdim=kind["pixdim"]).warnings
    assert warning.endswith("the spacing of its sform is used")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"srow_z": [0, 0, 0, 5]}, "its sform is singular: its spacing is 1×1×0 mm"),
        ({"srow_z": [1, 0, 0, 5], "srow_x": [1, 0, 0, 5]}, "its sform is singular"),
        ({"srow_z": [0, 0, np.nan, 5]}, "its sform contains NaN or infinity"),
        ({"srow_z": [0, 0, 1e5, 5]}, "1×1×1e+05 mm; must be 0.01-100 mm"),
        ({"srow_z": [0, 0, 1, 1e30]}, "its sform contains 1e+30 mm: it is damaged"),
        ({"srow_x": [1e-4, 0, 0, 5]}, "0.0001×1×1 mm"),
    ],
)
def test_invalid_affine_is_refused_unless_there_is_another(tmp_path, fields, told):
    with pytest.raises(VolumeError) as refused:
        of(tmp_path, qform=0, **fields)
    assert told in str(refused.value)
    found = of(tmp_path, qform=1, **fields)
    assert found.source == "qform"
    assert found.warnings == (f"{refused.value}; its qform is used",)


def test_qform_that_is_not_a_rotation_is_refused(tmp_path):
    with pytest.raises(VolumeError, match="its qform is not a rotation"):
        of(tmp_path, sform=0, quatern_b=3.0)


def test_skewed_axes_and_other_units_give_warnings(tmp_path):
    (skewed,) = of(tmp_path, qform=0, srow_x=[1, 0.1, 0, -12]).warnings
    assert skewed.startswith("its axes deviate from right angles by 5.7°")
    assert of(tmp_path, xyzt_units=3).warnings == (
        "its header has the unit micrometres; millimetres are assumed",
    )
    (other,) = of(tmp_path, qform=0, pixdim=[1, 2, 1, 1, 0, 0, 0, 0]).warnings
    assert other == (
        "its header has a spacing of 2×1×1 mm, its sform a spacing of 1×1×1 mm, which is used"
    )


# --- Several files


@pytest.mark.parametrize("turned", [0, 20, 45])
@pytest.mark.parametrize("code", all_orientations()[::3])
def test_order_of_axes_is_not_a_difference(tmp_path, code, turned):
    affine = affine_of((0.9, 1.1, 5.5), turned=turned)
    one = geometry(write_as(tmp_path / "a.nii", IMAGE, affine, "RAS"))
    path = write_as(tmp_path / "b.nii", IMAGE, affine, code)
    other = geometry(path)
    agreement = compare({"one": one, "other": other}, "one")
    assert (agreement.state, agreement.message) == ("equal", "")
    back = reorient_like(other, one)
    (channel,) = open_volume(path).read_channels()
    np.testing.assert_array_equal(back.apply(channel), reorient_like(one, one).apply(IMAGE))


def test_noise_is_equal_with_a_message(tmp_path):
    one = of(tmp_path, affine_of())
    for apart, state in ((0.0005, "equal"), (0.004, "noise"), (0.09, "noise"), (0.11, "different")):
        other = of(tmp_path, affine_of(origin=(-12 + apart, 30, 5)))
        agreement = compare({"flair": one, "t1": other}, "flair")
        assert agreement.state == state
        assert agreement.difference_mm == pytest.approx(apart, abs=1e-6)
    # It is the shortest side of a voxel that counts.
    thick = of(tmp_path, affine_of((1, 1, 5)))
    moved = of(tmp_path, affine_of((1, 1, 5), origin=(-12, 30, 5.2)))
    assert compare({"flair": thick, "t1": moved}, "flair").state == "different"
    other = of(tmp_path, affine_of(origin=(-12.004, 30, 5)))
    assert compare({"flair": one, "t1": one, "t2": other}, "flair").message == (
        "its files are up to 4 µm apart (flair and t2), less than a tenth of a voxel; they are "
        "treated as equal"
    )


def test_grids_rotated_by_nearly_45_degrees_are_equal(tmp_path):
    """Their axes have different names."""
    one, other = (of(tmp_path, affine_of(turned=turned)) for turned in (44.97, 45.03))
    assert one.orientation != other.orientation
    assert compare({"one": one, "other": other}, "one").state == "noise"


@pytest.mark.parametrize(
    ("change", "ways"),
    [
        ({"origin": (-12, 30, 7)}, "they differ in the position of their corners by up to 2 mm"),
        ({"turned": 5}, "they differ in direction by 5."),
        ({"spacing": (1, 1, 1.2)}, "they differ in spacing, the position of their corners"),
        ({"spacing": (1, 1, 1.008)}, "they differ in the position of their corners by up to 0.136"),
    ],
)
def test_differences_are_listed_with_all_grids(tmp_path, change, ways):
    one, other = of(tmp_path), of(tmp_path, affine_of(**change))
    agreement = compare({"flair": one, "t1": other}, "flair")
    assert agreement.state == "different"
    assert agreement.message.startswith(ways)
    assert agreement.message.endswith(f"(flair: {one}; t1: {other})")


def test_different_shapes_are_listed(tmp_path):
    one = of(tmp_path)
    other = geometry(write_nifti(tmp_path / "b.nii", IMAGE[:-1]))
    told = compare({"flair": one, "t1": other}, "flair").message
    assert told == (
        "they differ in shape, the position of their centres by up to 0.5 mm "
        "(flair: 26×22×18 voxels of 1×1×1 mm, RAS; t1: 25×22×18 voxels of 1×1×1 mm, RAS)"
    )
    assert one.shape == SHAPE
