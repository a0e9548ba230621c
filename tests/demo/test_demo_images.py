"""The demo cohort of images with nuclei: its sheets, its files and their content."""

import subprocess
import sys

import numpy as np
from clones import ROOT
from PIL import Image

from gigatile.cohort.images import read_images
from gigatile.cohort.splits import assign
from gigatile.demo.fields import SIDE, draw_field
from gigatile.demo.images import COHORT, NEW, labelled_sheet, new_sheet
from gigatile.instances.label_images import instances_of_labels
from gigatile.settings.split import SPLITS, SplitSettings


def test_committed_sheets_are_those_of_the_module():
    assert (ROOT / "demo/images.tsv").read_text() == labelled_sheet()
    assert (ROOT / "demo/new_images.tsv").read_text() == new_sheet()
    images = read_images(ROOT / "demo/images.tsv", may_be_missing=lambda path: True)
    splits = assign(images, SplitSettings())
    # Enough patients for an interval.
    counts = {split: list(splits.values()).count(split) for split in SPLITS}
    assert counts["test"] >= 5 and counts["valid"] >= 1 and counts["train"] >= 8, counts
    assert not {field.patient for field in COHORT} & {field.patient for field in NEW}


def test_nuclei_are_whole_darker_than_the_tissue_and_do_not_overlap():
    for field in COHORT[::5]:
        pixels, labels = draw_field(field)
        assert pixels.shape == (SIDE, SIDE, 3) and labels.shape == (SIDE, SIDE)
        instances = instances_of_labels(labels)
        assert 20 < len(instances) < 120
        areas = [int(instances.mask(index).sum()) for index in range(len(instances))]
        assert min(areas) >= 40 and max(areas) < 900
        grey = pixels.mean(axis=2)
        assert grey[labels > 0].mean() < grey[labels == 0].mean() - 20


def test_command_writes_the_same_files_again(tmp_path):
    script = [sys.executable, "scripts/make_demo_images.py", "--out", str(tmp_path)]
    subprocess.run(script, cwd=ROOT, check=True)
    names = {path.name for path in (tmp_path / "images").iterdir()}
    fields = (*COHORT, *NEW)
    assert names == {f"{f.image}{ending}.png" for f in fields for ending in ("", "-labels")}
    pixels, labels = draw_field(COHORT[3])
    for path, expected in ((COHORT[3].path, pixels), (COHORT[3].annotations, labels)):
        with Image.open(tmp_path / path) as image:
            np.testing.assert_array_equal(np.asarray(image), expected)
