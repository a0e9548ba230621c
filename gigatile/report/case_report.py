"""The report of a run on volumes: from the files of its stages to a folder of pages."""

from dataclasses import dataclass
from pathlib import Path

from gigatile.cohort.cases import read_cases
from gigatile.cohort.splits import SplitProof
from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.json_models import read_model
from gigatile.records.manifest import read_manifest
from gigatile.report.case_index import CaseFindings, case_index
from gigatile.report.case_inputs import (
    CaseModel,
    read_cohort,
    read_scored,
)
from gigatile.report.case_metrics import CaseMetrics, check_means
from gigatile.report.case_page import (
    CaseFiles,
    ShownCase,
    add_groups,
    check_state,
    write_case_pages,
)
from gigatile.report.inputs import read_history, read_recorded
from gigatile.report.leakage import chain_check
from gigatile.report.pages import check_ids, write_pages
from gigatile.report.provenance import Ledger, checksum
from gigatile.report.records import read_volume
from gigatile.report.shard_contents import read_contents
from gigatile.report.sites import with_sites

FOLDER = "cases"


@dataclass(frozen=True)
class CaseReportFiles:
    """The inputs of a report; `samples` is the sheet of cases, which tells the sites, or None."""

    cases_table: Path
    splits: Path
    shards: Path
    volumes_dir: Path
    model_dir: Path
    evaluation_dir: Path
    samples: Path | None = None


def write_case_report(files: CaseReportFiles, out: Path, title: str) -> None:
    """Write index.html and cases/<case>.html for each test case to `out`, whole or not at all.

    Raises:
        UserError: an input is missing, damaged, or does not belong to the others.
    """
    ledger, evaluation, model_dir = Ledger(), files.evaluation_dir, files.model_dir
    model = read_recorded(CaseModel, model_dir / "settings.json")
    regions = list(model.volumes.region_labels)
    cohort = read_cohort(files.cases_table)
    check_ids([one.case for one in cohort], files.cases_table, "case")
    splits = read_model(SplitProof, files.splits)
    manifest = read_manifest(files.shards)
    scored = read_scored(evaluation / "cases.tsv", regions)
    check_ids([one.case for one in scored], evaluation / "cases.tsv", "case")
    metrics = read_recorded(CaseMetrics, evaluation / "metrics.json")
    if metrics.regions != regions:
        raise UserError(
            f"{evaluation / 'metrics.json'}: its regions are {', '.join(metrics.regions)}, the "
            f"model's {', '.join(regions)}"
        )
    check_means(metrics, scored, evaluation / "metrics.json")
    sheet = None
    if files.samples is not None:
        # The cases' own files may have moved since.
        sheet = read_cases(files.samples, (), may_be_missing=lambda path: True)
        cohort = with_sites(cohort, sheet)
        ledger.add("the sheet of cases", files.samples, "Cohort: sites; Splits")
        ledger.check("splits.json", {"the sheet of cases": splits.sheet_sha256}, files.splits)
    ledger.add("cases.tsv", files.cases_table, "Cohort, Splits (counted anew), Cases left out")
    ledger.add("splits.json", files.splits, "Splits")
    ledger.add("shards/manifest.json", files.shards, "Splits (cases in the shards); Settings")
    ledger.add_model(model_dir, "Settings; labels and regions")
    evaluated = {
        "cases.tsv": "Test cases; Case pages: figures",
        "metrics.json": "Result, Figures",
    }
    ledger.add_folder("evaluation", evaluation, evaluated)
    ledger.check("model/settings.json", model.inputs, model_dir / "settings.json")
    states = {one.case: check_state(one, files.volumes_dir) for one in cohort}
    state_sums = {
        f"volumes/{one.case}.json": checksum(files.volumes_dir / f"{one.case}.json")
        for one in cohort
    }
    ledger.add_group("volumes/*.json", state_sums, "Cohort: grids, warnings; Case pages: input")
    history = read_history(model_dir / "history.tsv", "dice")
    versions = read_json(model_dir / "versions.json")
    with write_pages(out, FOLDER) as building:
        rows = {one.case: one for one in cohort}
        shown = [ShownCase(rows[one.case], one) for one in scored if one.case in rows]
        case_files = CaseFiles(
            files.volumes_dir, evaluation / "segmentations", model_dir / "model.keras"
        )
        sums = write_case_pages(shown, model, case_files, building / FOLDER)
        add_groups(
            ledger,
            sums,
            {
                "volumes/<case>.tfrecord": "Case pages: slices, outlines of the truth",
                "evaluation/segmentations/<case>.json": "Case pages: windows",
                "evaluation/segmentations/<case>.nii.gz": "Case pages: outlines of the prediction",
            },
            "test",
        )
        ledger.check("evaluation/metrics.json", metrics.inputs, evaluation / "metrics.json")
        needed = {
            "model/settings.json": ("shards/manifest.json",),
            "evaluation/metrics.json": ("model/settings.json", "cases.tsv", "evaluation/cases.tsv"),
        }
        chain = chain_check(ledger, model.chosen.epoch, model.inputs, needed)
        prepared = [one for one in cohort if one.state == "prepared"]
        contents = read_contents(files.shards, files.volumes_dir, prepared, read_volume, "case")
        found = CaseFindings(
            title=title,
            cohort=cohort,
            states=states,
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
        (building / "index.html").write_text(case_index(found), encoding="utf-8")
