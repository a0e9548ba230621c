"""The report of a run: from the files of its stages to a folder of pages."""

from dataclasses import dataclass
from pathlib import Path

from gigatile.cohort.samples import read_samples
from gigatile.cohort.splits import SplitProof
from gigatile.files import read_json
from gigatile.json_models import read_model
from gigatile.records.manifest import read_manifest
from gigatile.report.index_page import SlideFindings, check_confusion, index_page
from gigatile.report.inputs import (
    CohortSlide,
    ModelSettings,
    ScoredSlide,
    read_cohort,
    read_history,
    read_metrics,
    read_recorded,
    read_scored,
)
from gigatile.report.leakage import chain_check
from gigatile.report.losses import SlideLoss, read_loss
from gigatile.report.pages import check_ids, write_pages
from gigatile.report.provenance import Ledger, checksum
from gigatile.report.records import read_tile
from gigatile.report.shard_contents import read_contents
from gigatile.report.sites import with_sites
from gigatile.report.slide_page import KINDS, SlideFiles, check_state, write_slide_pages
from gigatile.slides.state import SlideState


@dataclass(frozen=True)
class ReportFiles:
    """The inputs of a report; `samples` is the sample sheet, which tells the sites, or None."""

    slides_table: Path
    splits: Path
    shards: Path
    tiles_dir: Path
    model_dir: Path
    evaluation_dir: Path
    samples: Path | None = None


def write_report(files: ReportFiles, out: Path, title: str, top_tiles: int = 8) -> None:
    """Write index.html and slides/<slide>.html for each scored slide to `out`, whole or not at all.

    Args:
        top_tiles: how many of the highest-scoring tiles of a class a slide's page shows.

    Raises:
        UserError: an input is missing, damaged, or does not belong to the others.
    """
    ledger, evaluation, model_dir = Ledger(), files.evaluation_dir, files.model_dir
    model = read_recorded(ModelSettings, model_dir / "settings.json")
    cohort = read_cohort(files.slides_table)
    check_ids([one.slide for one in cohort], files.slides_table)
    splits = read_model(SplitProof, files.splits)
    manifest = read_manifest(files.shards)
    scored = read_scored(evaluation / "slides.tsv", model.classes)
    check_ids([one.slide for one in scored], evaluation / "slides.tsv")
    metrics = read_metrics(evaluation / "metrics.json", model.classes)
    check_confusion(metrics, scored, evaluation / "metrics.json")
    sheet = None
    if files.samples is not None:
        # The slides' own files may have moved since.
        sheet = read_samples(files.samples, made_later=lambda path: True)
        cohort = with_sites(cohort, sheet)
        ledger.add("the sample sheet", files.samples, "Cohort: sites; Splits")
        ledger.check("splits.json", {"the sample sheet": splits.sheet_sha256}, files.splits)
    ledger.add("tiles.tsv", files.slides_table, "Cohort, Splits (counted anew), Slides left out")
    ledger.add("splits.json", files.splits, "Splits")
    ledger.add("shards/manifest.json", files.shards, "Splits (tiles in the shards); Settings")
    ledger.add_model(model_dir, "Settings; the classes")
    evaluated = {
        "tiles.parquet": "Slide pages: heat maps, votes, choice of tiles",
        "slides.tsv": "Test slides; Slide pages: scores and calls",
        "metrics.json": "Result, ROC curves, Confusion, Figures",
    }
    ledger.add_folder("evaluation", evaluation, evaluated)
    ledger.check("model/settings.json", model.inputs, model_dir / "settings.json")
    ledger.check("evaluation/metrics.json", metrics.inputs, evaluation / "metrics.json")
    states = [check_state(one, files.tiles_dir) for one in cohort]
    state_sums = {
        f"tiles/{one.slide}.json": checksum(files.tiles_dir / f"{one.slide}.json") for one in cohort
    }
    ledger.add_group("tiles/*.json", state_sums, "Cohort: scale; Splits: slide files; Slide pages")
    losses = _read_losses(files.tiles_dir, cohort, states)
    index_sums = {
        f"tiles/{one.slide}.parquet": checksum(files.tiles_dir / f"{one.slide}.parquet")
        for one in cohort
    }
    ledger.add_group("tiles/*.parquet", index_sums, "Slides left out: what was lost by label")
    needed = {
        "model/settings.json": ("shards/manifest.json",),
        "evaluation/metrics.json": ("model/model.keras", "tiles.tsv", "evaluation/slides.tsv"),
    }
    chain = chain_check(ledger, model.chosen.epoch, model.inputs, needed)
    usable = [one for one in cohort if one.state == "tiled"]
    contents = read_contents(files.shards, files.tiles_dir, usable, read_tile, "slide")
    history = read_history(model_dir / "history.tsv")
    versions = read_json(model_dir / "versions.json")
    with write_pages(out) as building:
        _write_slides(files, scored, cohort, model, top_tiles, building, ledger)
        found = SlideFindings(
            title=title,
            cohort=cohort,
            states=states,
            losses=losses,
            splits=splits,
            sheet=sheet,
            manifest=manifest,
            scored=scored,
            metrics=metrics,
            history=history,
            model=model,
            versions=versions,
            ledger=ledger,
            contents=contents,
            chain=chain,
        )
        (building / "index.html").write_text(index_page(found), encoding="utf-8")


def _write_slides(
    files: ReportFiles,
    scored: list[ScoredSlide],
    cohort: list[CohortSlide],
    model: ModelSettings,
    top_tiles: int,
    building: Path,
    ledger: Ledger,
) -> None:
    slide_files = SlideFiles(files.tiles_dir, files.evaluation_dir / "tiles.parquet")
    recorded = {one.slide: one.sha256 for one in cohort}
    sums = write_slide_pages(
        scored, model.classes, slide_files, recorded, top_tiles, building / "slides"
    )
    for kind, shows in KINDS.items():
        if kind == "json":  # of all slides, above
            continue
        group = {name: sha for name, sha in sums.items() if name.endswith(f".{kind}")}
        pattern = f"tiles/<slide>.{kind} of the test slides"
        ledger.add_group(pattern, group, f"Slide pages: {shows}")


def _read_losses(
    tiles_dir: Path, cohort: list[CohortSlide], states: list[SlideState]
) -> list[SlideLoss]:
    return [
        read_loss(
            tiles_dir / f"{one.slide}.parquet",
            one.slide,
            one.patient,
            one.label,
            one.state != "tiled",
            state.grid.columns if state.grid else 0,
        )
        for one, state in zip(cohort, states, strict=True)
    ]
