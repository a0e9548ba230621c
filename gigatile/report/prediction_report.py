"""The pages of new slides: what the model says of them. The truth is unknown, so no figures."""

from dataclasses import dataclass
from pathlib import Path

from gigatile.files import read_json
from gigatile.report.index_page import flat
from gigatile.report.inputs import ModelSettings, read_recorded, read_scored
from gigatile.report.pages import check_ids, render, write_pages
from gigatile.report.provenance import Ledger, checksum
from gigatile.report.slide_page import KINDS, SlideFiles, write_slide_pages
from gigatile.tables import read_table


@dataclass(frozen=True)
class PredictionFiles:
    """The inputs of the pages of new slides; `slides_table` has a row for each, failed ones too."""

    slides_table: Path
    tiles_dir: Path
    tile_scores: Path
    slide_scores: Path
    model_dir: Path


def write_prediction_pages(
    files: PredictionFiles, out: Path, title: str, top_tiles: int = 8
) -> None:
    """Write index.html and slides/<slide>.html to `out`, whole or not at all; its other files stay.

    Raises:
        UserError: an input is missing, damaged, or does not belong to the others.
    """
    ledger, model_dir = Ledger(), files.model_dir
    model = read_recorded(ModelSettings, model_dir / "settings.json")
    table = read_table(files.slides_table, ("slide", "state", "tiles", "reason", "sha256"))
    check_ids([row["slide"] for row in table], files.slides_table)
    scored = read_scored(files.slide_scores, model.classes, labelled=False)
    check_ids([one.slide for one in scored], files.slide_scores)
    versions = read_json(model_dir / "versions.json")
    for name, path, shows in (
        ("predictions/tiles.tsv", files.slides_table, "Slides without a call"),
        ("predictions/slides.tsv", files.slide_scores, "New slides; Slide pages: scores and calls"),
        ("predictions/tiles.parquet", files.tile_scores, "Slide pages: heat maps, votes, tiles"),
        ("model/settings.json", model_dir / "settings.json", "Model"),
        ("model/versions.json", model_dir / "versions.json", "Model: software"),
        ("model/model.keras", model_dir / "model.keras", "the model that gave the scores"),
    ):
        ledger.add(name, path, shows)
    recorded = {row["slide"]: row["sha256"] for row in table}
    slide_files = SlideFiles(
        files.tiles_dir, files.tile_scores, "predictions/tiles", "predictions/tiles.parquet"
    )
    with write_pages(out) as building:
        sums = write_slide_pages(
            scored, model.classes, slide_files, recorded, top_tiles, building / "slides"
        )
        for kind in KINDS:
            group = {name: sha for name, sha in sums.items() if name.endswith(f".{kind}")}
            pattern = f"predictions/tiles/<slide>.{kind} of the called slides"
            ledger.add_group(pattern, group, "Slide pages")
        called = {one.slide for one in scored}
        page = render(
            "predictions.html.j2",
            title=title,
            scored=scored,
            classes=model.classes,
            failed=[
                (row["slide"], row["reason"] or "no reason was recorded")
                for row in table
                if row["slide"] not in called
            ],
            settings=flat({"tiles": model.tiles, "train": model.train}),
            versions=versions,
            model_sha256=checksum(model_dir / "model.keras"),
            ledger=ledger,
        )
        (building / "index.html").write_text(page, encoding="utf-8")
