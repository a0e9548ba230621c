"""Folders of cases with the layout of published data sets."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np

# dataset.json of Task01_BrainTumour.
DECATHLON = {
    "name": "BRATS",
    "tensorImageSize": "4D",
    "modality": {"0": "FLAIR", "1": "T1w", "2": "t1gd", "3": "T2w"},
    "labels": {
        "0": "background",
        "1": "edema",
        "2": "non-enhancing tumor",
        "3": "enhancing tumour",
    },
    "numTraining": 2,
    "training": [
        {"image": "./imagesTr/BRATS_457.nii.gz", "label": "./labelsTr/BRATS_457.nii.gz"},
        {"image": "./imagesTr/BRATS_306.nii.gz", "label": "./labelsTr/BRATS_306.nii.gz"},
    ],
    "test": ["./imagesTs/BRATS_557.nii.gz"],
}
NNUNET = {
    "channel_names": {"0": "T2", "1": "ADC"},
    "labels": {"background": 0, "PZ": 1, "TZ": 2},
    "numTraining": 2,
    "file_ending": ".nii.gz",
}
Command = Callable[..., subprocess.CompletedProcess[str]]


def write_volume(path: Path, shape: tuple[int, ...] = (4, 5, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.arange(np.prod(shape)).reshape(shape).astype(np.int16)
    nib.save(nib.Nifti1Image(values, np.eye(4)), path)


def write_task(folder: Path, dataset: dict, *files: str) -> Path:
    for file in files:
        write_volume(folder / f"{file}.nii.gz")
    (folder / "dataset.json").write_text(json.dumps(dataset))
    return folder
