"""Which runs a server shows, and what it says of others."""

import pytest

from gigatile.command.main import main
from gigatile.errors import UserError
from gigatile.files import write_json
from gigatile.report.viewer_links import viewer_id
from gigatile.tables import write_table
from gigatile.viewer.shown_slides import open_run

SHEET = "slide\tpatient\tlabel\tpath\nA\tP1\tx\tA.svs\nB\tP2\ty\tB.svs\n"


class Row:
    unit = "slide"

    def __init__(self, slide, path):
        self.cells, self.files = {"slide": slide}, [path]


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "results/mine"
    write_json(folder / "model/settings.json", {"classes": ["x", "y"]})
    write_table(folder / "evaluation/slides.tsv", ("slide", "call_mean"), [("A", "x")])
    return folder


def rows(tmp_path, *names):
    return [Row(name, tmp_path / f"{name}.svs") for name in names]


def test_test_slides_and_new_slides(run, tmp_path):
    """Also if both have a slide of the same name; not those that left the sheet."""
    write_table(run / "predictions/slides.tsv", ("slide", "call_mean"), [("A", "y"), ("C", "y")])
    shown = open_run(run, "tile_classification", rows(tmp_path, "A", "B"), rows(tmp_path, "A"))
    old, new = viewer_id("mine", "A"), viewer_id("mine", "A", is_new=True)
    assert shown.slides.keys() == {old, new} and old != new
    assert shown.slides[new].predicted.tiles == run / "predictions/tiles"
    assert shown.slides[old].predicted.tiles == run / "tiles"


def test_ids_do_not_collide():
    pairs = {("a", "bc", False), ("ab", "c", False), ("a", "bc", True), ("abc", "", False)}
    assert len({viewer_id(*pair) for pair in pairs}) == len(pairs)


def test_runs_that_cannot_be_shown(run, tmp_path):
    cohort = rows(tmp_path, "B")
    with pytest.raises(UserError, match="no slide of the sheet was evaluated or predicted yet"):
        open_run(run, "tile_classification", cohort, ())
    with pytest.raises(UserError, match="mine has the task volume_segmentation; the viewer shows"):
        open_run(run, "volume_segmentation", cohort, ())
    (run / "model/settings.json").unlink()
    with pytest.raises(UserError, match="has no model yet; run the workflow first"):
        open_run(run, "tile_classification", cohort, ())


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["serve", *map(str, arguments)])
    assert ended.value.code
    return capsys.readouterr().err


def test_mistakes_on_the_command_line(run, tmp_path, capsys):
    (tmp_path / "samples.tsv").write_text(SHEET)
    configuration = tmp_path / "config.yaml"
    configuration.write_text("run: mine\nsamples: samples.tsv\n")
    work = ("--work-dir", tmp_path / "work")
    assert "name the folder of a bundle, or a run to show with --run" in refused(capsys, *work)
    assert "--run: needs --work-dir" in refused(capsys, "--run", tmp_path)
    twice = refused(capsys, "--run", tmp_path, "--run", configuration, *work)
    assert "there is another run with the name mine" in twice
    assert "no such configuration" in refused(capsys, "--run", tmp_path / "none.yaml", *work)
    configuration.write_text("run: other\nsamples: samples.tsv\n")
    assert "has no model yet" in refused(capsys, "--run", tmp_path, *work)
    (tmp_path / "samples.tsv").write_text("slide\tpath\nA\tA.svs\nA\tB.svs\n")
    assert "samples.tsv" in refused(capsys, "--run", tmp_path, *work)
