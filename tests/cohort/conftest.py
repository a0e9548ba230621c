"""A small task of the Decathlon."""

from pathlib import Path

import pytest
from published import DECATHLON, write_task


@pytest.fixture
def decathlon(tmp_path: Path) -> Path:
    """A small Task01_BrainTumour, with the hidden files of macOS."""
    folder = write_task(
        tmp_path / "Task01_BrainTumour",
        DECATHLON,
        *("imagesTr/BRATS_306", "imagesTr/BRATS_457", "labelsTr/BRATS_306", "labelsTr/BRATS_457"),
        "imagesTs/BRATS_557",
    )
    for name in ("imagesTr/._BRATS_306.nii.gz", "labelsTr/._BRATS_306.nii.gz", "._dataset.json"):
        (folder / name).write_bytes(b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X")
    return folder
