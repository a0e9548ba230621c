"""The pages of new cases, which have no reference segmentation."""

import re
from pathlib import Path

import pytest
from case_runs import add_new_cases
from test_self_contained import Page
from written import write_new_cases

from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of, write_json


@pytest.fixture
def new(case_run: Path) -> Path:
    """A run folder with new cases."""
    add_new_cases(case_run)
    return case_run


def write(run: Path) -> Path:
    out = run / "predictions/pages"
    write_new_cases(run, out)
    return out


def test_new_cases_have_volumes_and_no_figures(new: Path) -> None:
    out = write(new)
    index, case = Page(out / "index.html"), Page(out / "cases/N1.html")
    assert "The model segmented 2 new cases; 1 case could not be segmented" in index.text
    content = read_json(new / "predictions/segmentations/N1.json")["volumes_ml"]
    regions = ("whole_tumour", "tumour_core", "enhancing_tumour")
    volumes = " ".join(f"{content[region]:.2f}" for region in regions)
    assert content["whole_tumour"] == 0.288
    assert f"N1 Q1 {volumes} – 0" in index.text
    for page in (index, case):
        assert not re.search(r"Dice|HD95|[Ss]ensitivity|✓|✗|agree|differ", page.text)
    for region in regions:
        assert re.search(rf"{region.replace('_', ' ')} [a-z_, ]+ {content[region]:.2f}", case.text)
    assert "reference" not in case.text.replace("This case has no reference segmentation", "")


def test_only_the_prediction_is_outlined(new: Path) -> None:
    page = Page(write(new) / "cases/N1.html")
    assert 'class="predicted"' in page.html
    assert 'class="reference"' not in page.html
    assert "Where the prediction is largest" in page.text
    assert "blue" not in page.text


def test_empty_prediction_is_stated(new: Path) -> None:
    page = Page(write(new) / "cases/N2.html")
    assert "The middle slices: the prediction does not have any of the regions" in page.text
    assert "t1gd is missing; its channel was filled with zeros." in page.text


def test_failed_cases_are_listed_with_reasons(new: Path) -> None:
    out = write(new)
    assert "N3 flair (flair.nii.gz): it is an HTML page" in Page(out / "index.html").text
    assert sorted(path.name for path in (out / "cases").iterdir()) == ["N1.html", "N2.html"]


def test_files_have_their_checksums(new: Path) -> None:
    out = write(new)
    name = "predictions/segmentations/N1.nii.gz"
    assert f"{name} {sha256_of(new / name)}" in Page(out / "cases/N1.html").text
    table = f"predictions/cases.tsv {sha256_of(new / 'predictions/cases.tsv')}"
    assert table in Page(out / "index.html").text


def test_prediction_of_another_model_is_refused(new: Path) -> None:
    path = new / "predictions/segmentations/N1.json"
    content = read_json(path)
    write_json(path, content | {"inputs": {"model/model.keras": "0" * 64}})
    with pytest.raises(UserError, match=r"N1\.json: the segmentation is of another model"):
        write(new)
    write_json(path, content | {"inputs": {"volumes/N1.tfrecord": "0" * 64}})
    with pytest.raises(UserError, match=r"another volumes/N1\.tfrecord"):
        write(new)
    assert not (new / "predictions/pages").exists()


def test_other_files_in_the_folder_are_kept(new: Path) -> None:
    write(new)
    assert (new / "predictions/volumes/N1.json").exists()
    (new / "predictions/pages/notes.txt").write_text("mine")
    write(new)
    assert (new / "predictions/pages/notes.txt").read_text() == "mine"
