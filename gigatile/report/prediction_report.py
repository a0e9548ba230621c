"""The pages of new slides: what the model says of them. The truth is unknown, so no figures."""

from dataclasses import dataclass
from pathlib import Path

from gigatile.files import read_json
from gigatile.report.in_cohort import InCohort, compare_with_cohort
from gigatile.report.index_page import flat
from gigatile.report.inputs import ModelSettings, read_cohort, read_recorded, read_scored
from gigatile.report.pages import check_ids, render, write_pages
from gigatile.report.provenance import Ledger, checksum
from gigatile.report.records import read_tile
from gigatile.report.slide_page import KINDS, SlideFiles, write_slide_pages


@dataclass(frozen=True)
class PredictionFiles:
    """The inputs of the pages of new slides; `slides_table` has a row for each, failed ones too.

    Attributes:
        cohort: folder of the run that trained the model; None: the slides are not compared with its
            cohort.
    """

    slides_table: Path
    tiles_dir: Path
    tile_scores: Path
    slide_scores: Path
    model_dir: Path
    cohort: Path | None = None


def write_prediction_pages(
    files: PredictionFiles, out: Path, title: str, top_tiles: int = 8, matches: Path | None = None
) -> None:
    """Write index.html and slides/<slide>.html to `out`, whole or not at all; its other files stay.

    Args:
        files: the inputs.
        out: folder for the pages.
        title: heading of index.html.
        top_tiles: how many of the highest-scoring tiles of a class a slide's page shows.
        matches: table to write, of the slides that are in the cohort.

    Raises:
        UserError: an input is missing, damaged, or does not belong to the others.
    """
    ledger, model_dir = Ledger(), files.model_dir
    model = read_recorded(ModelSettings, model_dir / "settings.json")
    table = read_cohort(files.slides_table)
    check_ids([row.slide for row in table], files.slides_table)
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
    in_cohort = None
    if files.cohort is not None:
        ledger.add("tiles.tsv", files.cohort / "tiles.tsv", "In the cohort")
        cohort = read_cohort(files.cohort / "tiles.tsv")
        in_cohort = compare_with_cohort(
            table, files.tiles_dir, cohort, files.cohort / "tiles", read_tile
        )
    recorded = {row.slide: row.sha256 for row in table}
    slide_files = SlideFiles(
        files.tiles_dir, files.tile_scores, "predictions/tiles", "predictions/tiles.parquet"
    )
    with write_pages(out) as building:
        sums = write_slide_pages(
            scored, model.classes, slide_files, recorded, top_tiles, building / "slides", in_cohort
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
            in_cohort=in_cohort,
            classes=model.classes,
            failed=[
                (row.slide, row.reason or "no reason was recorded")
                for row in table
                if row.slide not in called
            ],
            settings=flat({"tiles": model.tiles, "train": model.train}),
            versions=versions,
            model_sha256=checksum(model_dir / "model.keras"),
            ledger=ledger,
        )
        (building / "index.html").write_text(page, encoding="utf-8")
        if matches is not None:
            (in_cohort or InCohort([], [], [])).write(matches, "slide")
