"""The last lines of a run, and the options with which a run predicts."""

import argparse
import json
from pathlib import Path

import pytest

from gigatile.command import verify
from gigatile.command.snakemake import predict_options
from gigatile.command.summary import left_out, summary_lines
from gigatile.errors import UserError
from gigatile.settings.whole import Settings


def lines_after(folder: Path, new: Path | None, settings: Settings | None = None) -> dict[str, str]:
    config = folder / "config.yaml"
    lines = summary_lines(settings or Settings(), {"predict": 1}, 3.0, folder / "log", config, new)
    return {line[:9].strip(): line[10:] for line in lines}


def test_prediction_ends_with_its_pages_and_the_command_that_verifies_them(tmp_path):
    (tmp_path / "new.tsv").write_text("slide\tpath\n")
    lines = lines_after(tmp_path, tmp_path / "new.tsv")
    assert lines["report"].endswith("/predictions/pages/index.html")
    assert f"gigatile verify {tmp_path} {tmp_path}/new.tsv checks" in lines["next"]
    assert "gigatile report" not in lines["next"]
    assert f"gigatile report {tmp_path} opens it" in lines_after(tmp_path, None)["next"]


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        ([""], "none of 1 slide"),
        (["", ""], "none of 2 slides"),
        (["no slide"], "1 of 1 slide: no slide (1)"),
        (["no slide", ""], "1 of 2 slides: no slide (1)"),
    ],
)
def test_slides_left_out_are_counted(tmp_path, reasons, text):
    rows = "".join(f"S{number}\t{reason}\n" for number, reason in enumerate(reasons))
    (tmp_path / "tiles.tsv").write_text(f"slide\treason\n{rows}")
    assert left_out(tmp_path / "tiles.tsv", "slide") == text


def test_sheet_of_slides_is_for_their_instances(tmp_path):
    """The columns of a sheet say whether its rows are images or whole slides."""
    settings = Settings(run="a", task="instance_segmentation", samples="a.tsv", train={})
    for header, setting in (
        ("slide\tpath", "slides"),
        ("image\tpath", "samples"),
        ("image\tslide\tpath", "samples"),
    ):
        sheet = tmp_path / "new.tsv"
        sheet.write_text(f"{header}\n")
        _, value = predict_options(tmp_path / "config.yaml", settings, sheet)
        assert json.loads(value.removeprefix("predict=")) == {setting: "new.tsv"}
    lines = lines_after(tmp_path, sheet, settings)
    assert lines["report"].endswith("/predictions/pages/index.html")
    sheet.write_text("slide\tpath\n")
    lines = lines_after(tmp_path, sheet, settings)
    assert lines["report"].endswith("/predictions/slide_pages/index.html")


def test_sheet_to_predict_is_relative_to_the_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^new.tsv: no such sheet$"):
        predict_options(tmp_path / "study/config.yaml", Settings(), Path("new.tsv"))
    Path("new.tsv").touch()
    option, value = predict_options(tmp_path / "study/config.yaml", Settings(), Path("new.tsv"))
    assert (option, json.loads(value.removeprefix("predict="))) == (
        "--config",
        {"samples": "../new.tsv"},
    )


@pytest.mark.parametrize("named", [False, True])
def test_verify_checks_predictions_if_their_sheet_is_named(tmp_path, monkeypatch, capsys, named):
    """Otherwise it says how: the predictions are files that no job makes."""
    sheet = tmp_path / "new.tsv"
    sheet.touch()
    (tmp_path / "config.yaml").write_text("run: study\nsamples: samples.tsv\n")
    options: list[str] = []

    def run_snakemake(configuration, given, log, on_event):
        options.extend(given)
        result = tmp_path / "results/study/logs/verify.log"
        result.parent.mkdir(parents=True)
        result.write_text("left over  predictions: no job makes it: predictions/slides.tsv\n")
        return 1

    monkeypatch.setattr(verify, "run_snakemake", run_snakemake)
    args = argparse.Namespace(target=tmp_path, samples=sheet if named else None, snakemake=[])
    with pytest.raises(SystemExit):
        verify.run(args)
    assert ('predict={"samples": "new.tsv"}' in options) == named
    assert ("gigatile verify DIR SHEET" in capsys.readouterr().err) != named
