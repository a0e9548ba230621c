"""The pages of new cases: what the model found in them. The truth is unknown, so no figures."""

from dataclasses import dataclass
from pathlib import Path

from gigatile.files import read_json
from gigatile.report.case_inputs import CaseModel, read_cohort
from gigatile.report.case_page import (
    CaseFiles,
    ShownCase,
    add_groups,
    check_state,
    read_segmentation,
    write_case_pages,
)
from gigatile.report.in_cohort import InCohort, compare_with_cohort
from gigatile.report.index_page import flat
from gigatile.report.inputs import read_recorded
from gigatile.report.pages import check_ids, render, write_pages
from gigatile.report.provenance import Ledger, checksum
from gigatile.report.records import read_volume

FOLDER = "cases"


@dataclass(frozen=True)
class CasePredictionFiles:
    """The inputs of the pages of new cases; `cases_table` has a row for each, failed ones too.

    Attributes:
        cohort: folder of the run that trained the model; None: the cases are not compared with its
            cohort.
    """

    cases_table: Path
    volumes_dir: Path
    segmentations_dir: Path
    model_dir: Path
    cohort: Path | None = None


def write_case_prediction_pages(
    files: CasePredictionFiles, out: Path, title: str, matches: Path | None = None
) -> None:
    """Write index.html and cases/<case>.html to `out`, whole or not at all.

    Args:
        files: the inputs.
        out: folder for the pages.
        title: heading of index.html.
        matches: table to write, of the cases that are in the cohort.

    Raises:
        UserError: an input is missing, damaged, or does not belong to the others.
    """
    ledger, model_dir = Ledger(), files.model_dir
    model = read_recorded(CaseModel, model_dir / "settings.json")
    cohort = read_cohort(files.cases_table)
    check_ids([one.case for one in cohort], files.cases_table, "case")
    states = {one.case: check_state(one, files.volumes_dir) for one in cohort}
    versions = read_json(model_dir / "versions.json")
    for name, path, shows in (
        ("predictions/cases.tsv", files.cases_table, "New cases, and those not segmented"),
        ("model/settings.json", model_dir / "settings.json", "Model"),
        ("model/versions.json", model_dir / "versions.json", "Model: software"),
        ("model/model.keras", model_dir / "model.keras", "the model that segmented"),
    ):
        ledger.add(name, path, shows)
    in_cohort = None
    if files.cohort is not None:
        ledger.add("cases.tsv", files.cohort / "cases.tsv", "In the cohort")
        known = read_cohort(files.cohort / "cases.tsv")
        in_cohort = compare_with_cohort(
            cohort, files.volumes_dir, known, files.cohort / "volumes", read_volume
        )
    shown = [
        ShownCase(one, matches=in_cohort.of(one.case) if in_cohort else ())
        for one in cohort
        if one.state == "prepared"
    ]
    case_files = CaseFiles(
        files.volumes_dir,
        files.segmentations_dir,
        model_dir / "model.keras",
        "predictions/volumes",
        "predictions/segmentations",
    )
    with write_pages(out, FOLDER) as building:
        sums = write_case_pages(shown, model, case_files, building / FOLDER)
        add_groups(
            ledger,
            sums,
            {
                "predictions/volumes/<case>.json": "New cases: warnings; Case pages: input",
                "predictions/volumes/<case>.tfrecord": "Case pages: slices",
                "predictions/segmentations/<case>.json": "New cases: volumes",
                "predictions/segmentations/<case>.nii.gz": "Case pages: outlines",
            },
            "segmented",
        )
        page = render(
            "case_predictions.html.j2",
            title=title,
            in_cohort=in_cohort,
            rows=[
                {
                    "case": one.row.case,
                    "patient": one.row.patient,
                    "state": states[one.row.case],
                    "volumes_ml": read_segmentation(
                        files.segmentations_dir / f"{one.row.case}.json", one.row.case
                    ).volumes_ml,
                }
                for one in shown
            ],
            failed=[
                (one.case, one.reason or "no reason was recorded")
                for one in cohort
                if one.state != "prepared"
            ],
            model=model,
            settings=flat(model.settings()),
            versions=versions,
            model_sha256=checksum(model_dir / "model.keras"),
            ledger=ledger,
        )
        (building / "index.html").write_text(page, encoding="utf-8")
        if matches is not None:
            (in_cohort or InCohort([], [], [])).write(matches, "case")
