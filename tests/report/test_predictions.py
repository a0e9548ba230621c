"""The pages of new slides, which have no labels."""

import re
from pathlib import Path

import pytest
from slide_runs import add_predictions
from test_self_contained import Page
from written import write_new_slides

from gigatile.errors import UserError
from gigatile.files import sha256_of


@pytest.fixture
def new(run: Path) -> Path:
    return add_predictions(run)


def pages(run: Path) -> tuple[Page, Page]:
    write_new_slides(run, run / "predictions")
    return Page(run / "predictions/index.html"), Page(run / "predictions/slides/S03.html")


def test_new_slides_have_predictions_and_no_figures(run: Path, new: Path) -> None:
    index, slide = pages(run)
    assert "The model classified 9 new slides; 1 slide could not be classified" in index.text
    for page in (index, slide):
        assert not re.search(r"Label|✓|✗|ROC|[Aa]ccuracy", page.text)
    row = (new / "slides.tsv").read_text().splitlines()[1].split("\t")
    assert f"Predicted by the mean score of the tiles {row[-2]}" in slide.text
    assert "those of predictions/tiles.parquet" in slide.text
    assert " predictions/tiles/S03.tfrecord " in slide.text
    assert len([a for a in slide.all("img") if a["alt"].startswith("Tile ")]) == 24


def test_failed_slides_are_listed_with_reasons(run: Path, new: Path) -> None:
    index, _ = pages(run)
    assert "F2 none of its 63 tiles has tissue" in index.text
    assert not (new / "slides/F2.html").exists()


def test_model_is_identified(run: Path, new: Path) -> None:
    index, _ = pages(run)
    assert f"SHA-256 of the model: {sha256_of(run / 'model/model.keras')}" in index.text
    assert "tiles.size 32" in index.text and "tensorflow 2.21.0" in index.text
    assert f"predictions/tiles.parquet {sha256_of(new / 'tiles.parquet')}" in index.text


def test_tables_in_the_folder_are_kept(run: Path, new: Path) -> None:
    before = {path.name for path in new.iterdir()}
    pages(run)
    pages(run)
    assert {path.name for path in new.iterdir()} == before | {"index.html", "slides"}


def test_new_slide_without_patient_has_a_page(run: Path, new: Path) -> None:
    for name in ("slides.tsv", "tiles.tsv"):
        text = (new / name).read_text()
        (new / name).write_text(text.replace("S03\tP03\t", "S03\t\t"))
    _, slide = pages(run)
    assert "Patient" not in slide.text


@pytest.mark.parametrize("name", ["tiles.tsv", "slides.tsv", "tiles.parquet", "tiles/S03.tfrecord"])
def test_missing_file_is_named(run: Path, new: Path, name: str) -> None:
    (new / name).unlink()
    with pytest.raises(UserError, match=re.escape(str(new / name))):
        pages(run)
    assert not (new / "index.html").exists()
