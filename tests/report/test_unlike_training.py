"""Reports and prediction pages name slides and cases that look unlike those of the training."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from slide_runs import CLASSES, Plan, add_predictions, build_run
from test_self_contained import Page
from written import write_new_slides, write_slides

from gigatile.files import read_json, write_json
from gigatile.report import write_prediction_pages
from gigatile.tasks.tile_classification.report import REPORT as SLIDES

USUAL = {"red": 200.0, "green": 130.0, "blue": 170.0, "contrast": 40.0, "sharpness": 0.4}


def give(states: Path, appearances: dict[str, dict[str, float]]) -> None:
    for name, appearance in appearances.items():
        path = states / f"{name}.json"
        write_json(path, read_json(path) | {"appearance": appearance})


def usual(names: list[str], seed: int) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng(seed)
    return {
        name: {key: value * float(rng.normal(1, 0.05)) for key, value in USUAL.items()}
        for name in names
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with 20 slides of train and valid, and 6 of test."""
    plans = [
        Plan(f"{letter}{number}", f"P{split}{number}", CLASSES[number % 3], split)
        for letter, split, count in (("R", "train", 15), ("V", "valid", 5), ("T", "test", 6))
        for number in range(count)
    ]
    for plan in plans:
        plan.columns, plan.rows = 3, 3
    run = build_run(tmp_path_factory.mktemp("unlike") / "run", plans)
    give(run / "tiles", usual([plan.slide for plan in plans], 1))
    return run


@pytest.fixture
def slides(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def report(run: Path, out: Path) -> str:
    write_slides(run, out)
    return Page(out / "index.html").text


def test_report_names_the_slide_and_what_differs(slides: Path, tmp_path: Path) -> None:
    give(slides / "tiles", {"T3": USUAL | {"blue": 60.0}})
    text = report(slides, tmp_path / "out")
    assert "1 of 6 test slides looks unlike the 20 slides" in text
    assert "about 0.3 would by chance" in text
    assert "T3 blue 60.00; in train and valid 1" in text
    page = Page(tmp_path / "out/slides/T3.html").text
    assert "This slide looks unlike" in page
    assert "Of these 20 slides, none looks as different" in page
    assert "looks unlike" not in Page(tmp_path / "out/slides/T4.html").text


def test_report_says_that_none_is_unlike(slides: Path, tmp_path: Path) -> None:
    give(slides / "tiles", {f"T{number}": USUAL for number in range(6)})
    assert "0 of 6 test slides look unlike" in report(slides, tmp_path / "out")


def test_report_says_that_nothing_was_compared(slides: Path, tmp_path: Path) -> None:
    give(slides / "tiles", {path.stem: {} for path in (slides / "tiles").glob("*.json")})
    text = report(slides, tmp_path / "out")
    assert "Not compared: the figures of at least 10 slides of train and valid are needed" in text


def test_report_counts_slides_without_figures(slides: Path, tmp_path: Path) -> None:
    give(slides / "tiles", {"T0": {}, "R0": {}})
    text = report(slides, tmp_path / "out")
    assert "of 5 test slides" in text
    assert "unlike the 19 slides" in text
    assert "1 other could not be compared" in text


@pytest.fixture
def new(slides: Path) -> Path:
    add_predictions(slides)
    give(slides / "predictions/tiles", {f"T{number}": USUAL for number in range(6)})
    give(slides / "predictions/tiles", {"T3": USUAL | {"sharpness": 0.01}})
    return slides


def test_new_slides_are_compared_with_the_run(new: Path, tmp_path: Path) -> None:
    write_new_slides(new, tmp_path / "out", new)
    text = Page(tmp_path / "out/index.html").text
    assert (
        "1 new slide looks unlike the slides that the model was trained and chosen on: T3" in text
    )
    assert "T3 sharpness 0.01; in train and valid 0.3" in text
    assert "tiles/<slide>.json" in text
    assert "This slide looks unlike" in Page(tmp_path / "out/slides/T3.html").text


def test_new_slides_are_compared_with_the_bundle(new: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    np.save(bundle / "cohort_images.npy", np.empty(0, np.uint64))
    files = {name: new / path for name, path in SLIDES.new_inputs.items()}

    def text() -> str:
        out = tmp_path / "out"
        images = bundle / "cohort_images.npy"
        write_prediction_pages(SLIDES, files, out, "New", cohort_images=images)
        return Page(out / "index.html").text

    assert "Unlike the training data" not in text()
    trained = list(usual([f"R{number}" for number in range(20)], 2).values())
    write_json(bundle / "cohort.json", {"unit": "slide", "appearance": trained})
    assert "1 new slide looks unlike" in text()
    write_json(bundle / "cohort.json", {"unit": "slide"})
    assert "Not compared: the figures of at least 10 slides" in text()


def test_new_slides_without_a_cohort_are_not_compared(new: Path, tmp_path: Path) -> None:
    write_new_slides(new, tmp_path / "out")
    assert "Unlike the training data" not in Page(tmp_path / "out/index.html").text


def test_archived_states_of_the_cohort_are_left_out(new: Path, tmp_path: Path) -> None:
    for name in ("R0", "R1", "V0"):
        (new / f"tiles/{name}.json").unlink()
    write_new_slides(new, tmp_path / "out", new)
    assert "unlike the 17 slides" in Page(tmp_path / "out/index.html").text
