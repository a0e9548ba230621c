"""Fixtures: two modalities of a head, and a segmentation."""

import pytest
from known_volumes import head, tumour, write_nifti


@pytest.fixture
def images(tmp_path):
    """Two modalities of a head; the background of flair is not 0."""
    (tmp_path / "in").mkdir()
    return {
        "flair": write_nifti(tmp_path / "in" / "f.nii.gz", head(background=-3.5)),
        "t1": write_nifti(tmp_path / "in" / "t.nii.gz", head(seed=2)),
    }


@pytest.fixture
def segmentation(tmp_path, images):
    return write_nifti(tmp_path / "in" / "s.nii.gz", tumour())
