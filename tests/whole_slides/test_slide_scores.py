"""Slides that cannot be scored are recorded with their reason, and the others are collected."""

import pandas as pd
import pytest

from gigatile.errors import UserError
from gigatile.report.whole_slides.maps import read_not_scored
from gigatile.tasks.slide_classification.evaluation import collect_scores
from gigatile.tasks.slide_classification.slide_scores import skip_slide, write_scores

CLASSES = ["a", "b"]
ROWS = [{"slide": name, "patient": f"P-{name}", "label": "a", "tiles": "3"} for name in ("S", "T")]
REASON = "its tiles have 0.25 µm per pixel"


def score(folder, slide: str, classes=CLASSES) -> None:
    positions = pd.DataFrame({"x": [1.0], "y": [2.0], "side": [32.0], "p_a": [0.7], "p_b": [0.3]})
    write_scores(
        slide, classes, (0.75, 0.25), positions,
        folder / f"{slide}.parquet", folder / f"{slide}.json", {},
    )  # fmt: skip


def test_slide_that_was_not_scored_is_left_out_with_its_reason(tmp_path, capsys):
    score(tmp_path, "S")
    skip_slide("T", REASON, tmp_path / "T.parquet", tmp_path / "T.json")
    table = collect_scores(ROWS, tmp_path, CLASSES)
    assert table.to_dict("records") == [
        {"slide": "S", "patient": "P-S", "label": "a", "tiles": 3,
         "p_a": 0.75, "p_b": 0.25, "call_mean": "a"},
    ]  # fmt: skip
    assert f"not scored: T: {REASON}" in capsys.readouterr().out
    (tmp_path / "maps").symlink_to(tmp_path)
    assert read_not_scored(tmp_path, ["S", "T"]) == {"T": REASON}


def test_no_scored_slide_is_one_message_with_all_reasons(tmp_path):
    for slide in ("S", "T"):
        skip_slide(slide, REASON, tmp_path / f"{slide}.parquet", tmp_path / f"{slide}.json")
    with pytest.raises(UserError, match=rf"(?s)no slide was scored.*S: {REASON}.*T: {REASON}"):
        collect_scores(ROWS, tmp_path, CLASSES)


def test_scores_of_another_slide_or_model_are_refused(tmp_path):
    score(tmp_path, "S")
    (tmp_path / "T.json").write_bytes((tmp_path / "S.json").read_bytes())
    with pytest.raises(UserError, match=r"T\.json: has no scores of slide 'T'"):
        collect_scores(ROWS, tmp_path, CLASSES)
    score(tmp_path, "S", ["b", "a"])
    with pytest.raises(UserError, match=r"S\.json: has no scores of slide 'S' for a, b"):
        collect_scores(ROWS, tmp_path, CLASSES)
