"""What the page of a slide tells, on slides of every kind."""

import json
from pathlib import Path

from conftest import Plan, build_run, cohort
from test_self_contained import Page, report_files

from gigatile.files import sha256_of, write_json
from gigatile.report import write_report


def slide(run: Path, name: str, top_tiles: int = 8) -> Page:
    write_report(report_files(run), run / "report", "Demo", top_tiles)
    return Page(run / f"report/slides/{name}.html")


def test_the_header_tells_truth_and_both_calls(run: Path) -> None:
    rows = [r.split("\t") for r in (run / "evaluation/slides.tsv").read_text().splitlines()[1:]]
    outcomes = set()
    write_report(report_files(run), run / "report", "Demo")
    for row in rows:
        text = Page(run / f"report/slides/{row[0]}.html").text
        verdict = {call: "✓ right" if call == row[2] else "✗ wrong" for call in row[-2:]}
        assert (
            f"Truth {row[2]} Call by the mean of tile scores {row[-2]} {verdict[row[-2]]}" in text
        )
        assert f"Call by the tiles' majority vote {row[-1]} {verdict[row[-1]]}" in text
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


def test_kept_dropped_and_scale_are_told(run: Path) -> None:
    state = json.loads((run / "tiles/S03b.json").read_text())
    text = slide(run, "S03b").text
    assert f"Kept {state['tiles']['kept']} of 63 (9 × 7)" in text
    assert f"Dropped as background {state['tiles']['dropped']['background']}" in text
    assert "31.7 px of level 0, resampled" in text
    assert "0.5 µm per pixel, from the slide's file" in text
    assert "20 µm" in text  # the scale bar: a quarter of 294 px at 0.5 µm is 36 µm


def test_a_slide_of_unknown_scale_has_no_bar(tmp_path: Path) -> None:
    plans = [plan for plan in cohort() if plan.slide != "S03"]
    plans.append(Plan("S03", "P03", "adeno", "test", mpp=None))
    page = slide(build_run(tmp_path / "demo", plans), "S03")
    assert "not known: neither sheet nor file tells it" in page.text
    assert "No scale bar" in page.text
    assert 'class="scale"' not in page.html


def test_a_scale_from_the_sheet_is_told_as_such(run: Path) -> None:
    path = run / "tiles/S03.json"
    write_json(path, json.loads(path.read_text()) | {"mpp_from": "sheet"})
    assert "0.5 µm per pixel, from the sample sheet" in slide(run, "S03").text


def test_each_of_few_classes_has_its_tiles_the_called_one_first(run: Path) -> None:
    page = slide(run, "S03", top_tiles=5)
    tiles = [a["alt"].split()[2] for a in page.all("img") if a["alt"].startswith("Tile ")]
    call = (run / "evaluation/slides.tsv").read_text().splitlines()[1].split("\t")[-2]
    assert tiles[:5] == [call] * 5
    assert {name: tiles.count(name) for name in set(tiles)} == {
        "adeno": 5,
        "normal": 5,
        "squamous": 5,
    }


def test_of_many_classes_the_called_and_the_true_one_have_tiles(tmp_path: Path) -> None:
    classes = tuple("abcdef")
    run = build_run(tmp_path / "demo", cohort(classes), classes)
    write_report(report_files(run), run / "report", "Demo")
    rows = (run / "evaluation/slides.tsv").read_text().splitlines()[1:]
    for row in (row.split("\t") for row in rows):
        page = Page(run / f"report/slides/{row[0]}.html")
        tiles = {a["alt"].split()[2] for a in page.all("img") if a["alt"].startswith("Tile ")}
        assert tiles == {row[2], row[-2], row[-1]}
        assert len(page.all("input")) == 6 + 1 + 1


def test_a_slide_of_one_tile_has_a_page(tmp_path: Path) -> None:
    plans = [plan for plan in cohort() if plan.slide != "S03"]
    plans.append(Plan("S03", "P03", "adeno", "test", columns=1, rows=1))
    assert "Slide S03" in slide(build_run(tmp_path / "demo", plans), "S03").text


def test_the_files_behind_the_page_have_their_checksums(run: Path) -> None:
    page = slide(run, "S03")
    for kind in ("json", "jpg", "tfrecord"):
        assert f" tiles/S03.{kind} {sha256_of(run / f'tiles/S03.{kind}')}" in page.text
    assert "those of evaluation/tiles.parquet" in page.text
