"""The page of a slide."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from slide_runs import Plan, build_run, cohort
from test_self_contained import Page
from written import write_slides

from gigatile.errors import UserError
from gigatile.files import sha256_of, write_json
from gigatile.report.slides.tile_status import FAULTS


def slide(run: Path, name: str, top_tiles: int = 8) -> Page:
    write_slides(run, run / "report", top_tiles=top_tiles)
    return Page(run / f"report/slides/{name}.html")


def test_header_has_label_and_both_predictions(run: Path) -> None:
    rows = [r.split("\t") for r in (run / "evaluation/slides.tsv").read_text().splitlines()[1:]]
    outcomes = set()
    write_slides(run, run / "report")
    for row in rows:
        text = Page(run / f"report/slides/{row[0]}.html").text
        verdict = {call: "✓ correct" if call == row[2] else "✗ wrong" for call in row[-2:]}
        assert (
            f"Label {row[2]} Predicted by the mean score of the tiles {row[-2]} {verdict[row[-2]]}"
            in text
        )
        assert f"Predicted by the majority vote of the tiles {row[-1]} {verdict[row[-1]]}" in text
        for score in row[4:-2]:
            assert f"{float(score):.3f}" in text
        outcomes |= set(verdict.values())
    assert len(outcomes) == 2


def test_votes_add_up_to_the_tiles(run: Path) -> None:
    import re

    page = slide(run, "S03")
    votes = [int(n) for n in re.findall(r'<td class="n">(\d+) <span class="soft">\(', page.html)]
    assert len(votes) == 3
    assert sum(votes) == json.loads((run / "tiles/S03.json").read_text())["tiles"]["kept"]


def test_kept_and_dropped_tiles_and_scale_are_shown(run: Path) -> None:
    state = json.loads((run / "tiles/S03b.json").read_text())
    text = slide(run, "S03b").text
    assert f"Kept {state['tiles']['kept']} of 63 (9 × 7)" in text
    assert f"Dropped: background {state['tiles']['dropped']['background']}" in text
    assert "Kept and marked: out of focus 1 " in text
    assert "from its native JPEG tiles; 4 tiles compared with OpenSlide" in text
    assert "31.7 px of level 0, resampled" in text
    assert "0.5 µm per pixel, from the slide's file" in text
    assert "20 µm" in text  # the scale bar: a quarter of 294 px at 0.5 µm is 36 µm


def test_slide_of_unknown_scale_has_no_scale_bar(tmp_path: Path) -> None:
    plans = [plan for plan in cohort() if plan.slide != "S03"]
    plans.append(Plan("S03", "P03", "adeno", "test", mpp=None))
    page = slide(build_run(tmp_path / "demo", plans), "S03")
    assert "not known: it is neither in the sheet nor in the file" in page.text
    assert "No scale bar" in page.text
    assert 'class="scale"' not in page.html


def test_source_of_the_scale_is_shown(run: Path) -> None:
    path = run / "tiles/S03.json"
    write_json(path, json.loads(path.read_text()) | {"mpp_from": "sheet"})
    assert "0.5 µm per pixel, from the sample sheet" in slide(run, "S03").text


def test_gallery_of_the_predicted_class_is_first(run: Path) -> None:
    page = slide(run, "S03", top_tiles=5)
    tiles = [a["alt"].split()[2] for a in page.all("img") if a["alt"].startswith("Tile ")]
    call = (run / "evaluation/slides.tsv").read_text().splitlines()[1].split("\t")[-2]
    assert tiles[:5] == [call] * 5
    assert {name: tiles.count(name) for name in set(tiles)} == {
        "adeno": 5,
        "normal": 5,
        "squamous": 5,
    }


def test_with_many_classes_few_have_a_gallery(tmp_path: Path) -> None:
    classes = tuple("abcdef")
    run = build_run(tmp_path / "demo", cohort(classes), classes)
    write_slides(run, run / "report")
    rows = (run / "evaluation/slides.tsv").read_text().splitlines()[1:]
    for row in (row.split("\t") for row in rows):
        page = Page(run / f"report/slides/{row[0]}.html")
        tiles = {a["alt"].split()[2] for a in page.all("img") if a["alt"].startswith("Tile ")}
        assert tiles == {row[2], row[-2], row[-1]}
        assert len(page.all("input")) == 6 + 2 + 1


def test_slide_with_one_tile_has_a_page(tmp_path: Path) -> None:
    plans = [plan for plan in cohort() if plan.slide != "S03"]
    plans.append(Plan("S03", "P03", "adeno", "test", columns=1, rows=1))
    assert "Slide S03" in slide(build_run(tmp_path / "demo", plans), "S03").text


def test_files_of_the_page_have_their_checksums(run: Path) -> None:
    page = slide(run, "S03")
    for kind in ("json", "jpg", "parquet", "tfrecord"):
        assert f" tiles/S03.{kind} {sha256_of(run / f'tiles/S03.{kind}')}" in page.text
    assert "those of evaluation/tiles.parquet" in page.text


# --- Tile status


def test_tile_status_is_painted_at_the_tiles(run: Path) -> None:
    page = slide(run, "S03")
    (image,) = [a for a in page.all("image") if a["class"] == "layer layer-status"]
    data = base64.b64decode(image["href"].partition("base64,")[2])
    painted = np.asarray(Image.open(io.BytesIO(data)))
    index = pq.read_table(run / "tiles/S03.parquet").to_pydict()
    state = json.loads((run / "tiles/S03.json").read_text())
    columns = state["grid"]["columns"]
    assert painted.shape == (state["grid"]["rows"], columns, 4)
    for number, (dropped, marks) in enumerate(zip(index["dropped"], index["marks"], strict=True)):
        colour = painted[number // columns, number % columns].tolist()
        if dropped:
            assert colour == [*FAULTS["background"][1], 255]
        else:
            assert colour == ([*FAULTS["blur"][1], 110] if marks else [0, 0, 0, 0])
    assert "background: #999999" in page.html and "background: #0072b2" in page.html
    assert "background: #009e73" not in page.html  # no tile of the slide has stripes


def test_faults_of_a_slide_are_shown(run: Path) -> None:
    path = run / "tiles/S03.json"
    state = json.loads(path.read_text())
    state["contradictions"] = ["0.5 µm per pixel by the file, 0.25 by the objective"]
    state["reading"] = {"by": "openslide", "why": "its tiles are WEBP, not JPEG", "compared": 0}
    state["unreadable"] = [{"x": 7, "y": 1234, "reason": "/data/x/S03.svs: a torn page"}]
    state["stain"] = {"source": None, "target": {"method": "macenko"}, "why_not": "too little"}
    path.write_text(json.dumps(state))
    text = slide(run, "S03").text
    assert "Contradiction: 0.5 µm per pixel by the file, 0.25 by the objective" in text
    assert "by OpenSlide: its tiles are WEBP, not JPEG" in text
    assert "Unreadable at 7, 1,234 …/S03.svs: a torn page" in text
    assert "not normalised: too little" in text


@pytest.mark.parametrize("fault", ["gone", "damaged", "of another grid", "of no known fault"])
def test_bad_table_of_tiles_is_named(run: Path, fault: str) -> None:
    path = run / "tiles/S03.parquet"
    if fault == "gone":
        path.unlink()
    elif fault == "damaged":
        path.write_bytes(path.read_bytes()[:-7])
    elif fault == "of another grid":
        pq.write_table(pq.read_table(path).slice(1), path)
    else:
        table = pq.read_table(path)
        marks = pa.array(["haunted"] * len(table))
        table = table.set_column(table.column_names.index("marks"), "marks", marks)
        pq.write_table(table, path)
    with pytest.raises(UserError, match=re.escape(str(path))):
        slide(run, "S03")
