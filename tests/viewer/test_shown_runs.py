"""Which runs a server shows, and what it says of others."""

import pytest
from bundles import make_bundle

from gigatile.command.bundle_run import prepare_run
from gigatile.command.main import main
from gigatile.command.serve import open_runs
from gigatile.errors import UserError
from gigatile.files import write_json
from gigatile.report.viewer_links import viewer_id
from gigatile.tables import write_table
from gigatile.viewer.shown_slides import SheetSlide, open_run

SHEET = "slide\tpatient\tlabel\tpath\nA\tP1\tx\tA.svs\nB\tP2\ty\tB.svs\n"


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "results/mine"
    write_json(folder / "model/settings.json", {"classes": ["x", "y"]})
    write_table(folder / "evaluation/slides.tsv", ("slide", "call_mean"), [("A", "x")])
    return folder


def rows(tmp_path, *names):
    return [SheetSlide(name, tmp_path / f"{name}.svs", None) for name in names]


def test_test_slides_and_new_slides(run, tmp_path):
    """Also if both have a slide of the same name; not those that left the sheet."""
    write_table(run / "predictions/slides.tsv", ("slide", "call_mean"), [("A", "y"), ("C", "y")])
    shown = open_run(
        run, "tile_classification", run / "model", rows(tmp_path, "A", "B"), rows(tmp_path, "A")
    )
    old, new = viewer_id("mine", "A"), viewer_id("mine", "A", is_new=True)
    assert shown.slides.keys() == {old, new} and old != new
    assert shown.slides[new].predicted.tiles == run / "predictions/tiles"
    assert shown.slides[old].predicted.tiles == run / "tiles"


def test_predictions_with_a_bundle(tmp_path):
    """In the folder that `gigatile predict BUNDLE` wrote: there is no cohort."""
    bundle = make_bundle(tmp_path / "bundle")
    sheet = tmp_path / "new.tsv"
    sheet.write_text("slide\tpath\nN1\tslides/N1.svs\nN2\tslides/N2.svs\n")
    configuration, _ = prepare_run(bundle, [sheet], tmp_path / "out")
    predictions = tmp_path / "out/results/tiny/predictions"
    write_table(predictions / "slides.tsv", ("slide", "call_mean"), [("N2", "lusc")])
    for target in (configuration, tmp_path / "out"):
        (run,) = open_runs([target])
        (slide,) = run.slides.values()
        assert (slide.id, slide.name) == (viewer_id("tiny", "N2", is_new=True), "N2")
        assert slide.source.resolve() == tmp_path.resolve() / "slides/N2.svs"
        assert slide.predicted.classes == ["luad", "lusc"]


def test_annotations_of_any_sheet(run, tmp_path):
    """Of the cohort and of new slides, relative to the sheet; other files are not annotations."""
    folder = tmp_path / "sheets"
    folder.mkdir()
    cells = ("a/A.geojson", "B.geojson.gz", "", "notes.txt", "labels.json")
    header = "slide\tpatient\tlabel\tpath\tannotations\n"
    lines = [f"{s}\tP{s}\tx\t{s}.svs\t{c}\n" for s, c in zip("ABCDE", cells, strict=True)]
    for name in ("samples", "new"):
        (folder / f"{name}.tsv").write_text(header + "".join(lines))
    (tmp_path / "config.yaml").write_text(
        "run: mine\nsamples: sheets/samples.tsv\npredict: {samples: sheets/new.tsv}\n"
    )
    write_table(run / "predictions/slides.tsv", ("slide", "call_mean"), [(s, "x") for s in "ABCDE"])
    (shown,) = open_runs([tmp_path])
    names = {id: slide.annotations and slide.annotations.name for id, slide in shown.slides.items()}
    wanted = dict(zip("ABCDE", ("A.geojson", "B.geojson.gz", None, None, None), strict=True))
    assert names == {viewer_id("mine", "A"): "A.geojson"} | {
        viewer_id("mine", slide, is_new=True): name for slide, name in wanted.items()
    }
    first = shown.slides[viewer_id("mine", "A")]
    assert first.annotations.resolve() == folder.resolve() / "a/A.geojson"


def test_ids_do_not_collide():
    pairs = {("a", "bc", False), ("ab", "c", False), ("a", "bc", True), ("abc", "", False)}
    assert len({viewer_id(*pair) for pair in pairs}) == len(pairs)


def test_runs_that_cannot_be_shown(run, tmp_path):
    cohort = rows(tmp_path, "B")
    with pytest.raises(UserError, match="no slide of its sheets was evaluated or predicted yet"):
        open_run(run, "tile_classification", run / "model", cohort, ())
    with pytest.raises(UserError, match="mine has the task volume_segmentation, which has no"):
        open_run(run, "volume_segmentation", run / "model", cohort, ())
    with pytest.raises(UserError, match="no slide of its sheets was evaluated or predicted yet"):
        open_run(run, "instance_segmentation", run / "model", (), (), cohort)
    (run / "model/settings.json").unlink()
    with pytest.raises(UserError, match="has no model yet; run the workflow first"):
        open_run(run, "tile_classification", run / "model", cohort, ())


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
