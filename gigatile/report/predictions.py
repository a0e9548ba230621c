"""Writes the pages of new slides or cases: predictions without labels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gigatile.earlier_models import doubt_of_bundle
from gigatile.evaluation.appearance import TrainingAppearances
from gigatile.files import read_json
from gigatile.json_models import read_model
from gigatile.model_files import COHORT
from gigatile.report.appearance import (
    TRAINED,
    compare_appearances,
    read_training_appearances,
    training_appearances,
)
from gigatile.report.earlier_cohorts import doubt_of_pixels, earlier_data
from gigatile.report.inputs import CohortRow, read_cohort
from gigatile.report.known_samples import (
    CohortMatches,
    compare_with_cohort,
    compare_with_images,
    read_images,
)
from gigatile.report.pages import check_ids, flat, render, write_pages
from gigatile.report.provenance import Ledger, checksum
from gigatile.report.task_report import TaskReport
from gigatile.report.unit_pages import PageFiles, PageInputs, add_page_files, write_unit_pages
from gigatile.settings.initial_weights import INITIAL_WEIGHTS


def write_prediction_pages(
    task: TaskReport,
    files: Mapping[str, Path],
    out: Path,
    title: str,
    cohort: Path | None = None,
    matches: Path | None = None,
    cohort_images: Path | None = None,
    external: bool = False,
    weights: Path | None = None,
    **options: Any,
) -> None:
    """Write index.html and a page for each new slide or case to `out`, all of them or none.

    Args:
        task: the report of the task.
        files: the inputs, by the names in `task.new_inputs`.
        out: folder for the pages; other files in it are kept.
        title: heading of index.html.
        cohort: folder of the run that trained the model; None: the new slides or cases are not
            compared with its cohort.
        matches: table to write, of the new slides or cases that are in the cohort.
        cohort_images: hashes of the images of the cohort, (n,) uint64 as .npy, if `cohort` is not
            given.
        external: whether the slides have labels, so that ../external/ has the page of an external
            validation.
        weights: the file that the training of the model started from; None: it is not known.
        options: of the pages of slides or cases.

    Raises:
        UserError: an input is missing, damaged, or does not match the others.
    """
    ledger, model_dir = Ledger(), files["model_dir"]
    model = read_model(task.model, model_dir / "settings.json")
    table = read_cohort(files["table"], task.unit, task.columns, task.records_column)
    check_ids([row.id for row in table], files["table"], task.unit)
    scored = task.new.read(files["results_dir"], model, table)
    versions = read_json(model_dir / "versions.json")
    for name, shows in task.new.shows.items():
        path = files["table"] if name == task.table else files["results_dir"] / name
        ledger.add(f"predictions/{name}", path, shows)
    ledger.add_folder(
        "model",
        model_dir,
        {
            "settings.json": "Model",
            "versions.json": "Model: software",
            "model.keras": "nothing; it is the model of these predictions",
        },
    )
    cohort_matches, trained = None, None
    if cohort is not None:
        ledger.add(task.table, cohort / task.table, "In the cohort")
        known = read_cohort(cohort / task.table, task.unit, task.columns, task.records_column)
        trained = _trained(task, known, cohort / task.records, ledger)
        cohort_matches = compare_with_cohort(
            table, files["records_dir"], known, cohort / task.records, task.kind, task.file_of
        )
    elif cohort_images is not None:
        ledger.add(f"model/{cohort_images.name}", cohort_images, "In the cohort")
        cohort_matches = compare_with_images(
            table, files["records_dir"], read_images(cohort_images), task.kind
        )
        if (look := cohort_images.with_name(COHORT)).exists():
            ledger.add(f"model/{look.name}", look, "Unlike the training data")
            trained = read_training_appearances(look)
    if cohort_matches is not None and INITIAL_WEIGHTS in model.inputs:
        if cohort is not None:
            cohort_matches = _with_earlier(task, cohort_matches, table, files, weights)
        else:
            cohort_matches = replace(cohort_matches, doubt=doubt_of_bundle(model_dir))
    page_files = PageFiles(
        files["records_dir"],
        files["results_dir"],
        model_dir / "model.keras",
        f"predictions/{task.records}",
        "predictions",
    )
    appearances = None
    if trained is not None:
        states = {
            row.id: task.read_state(row, files["records_dir"]) for row in table if row.id in scored
        }
        appearances = compare_appearances(states, trained)
    inputs = PageInputs(
        files=page_files,
        model=model,
        rows={row.id: row for row in table},
        scored=scored,
        matches=cohort_matches.matches_of if cohort_matches else lambda name: (),
        appearance=appearances.tests.get if appearances else lambda name: None,
        options=options,
    )
    unscored = [row.id for row in table if row.id not in scored and row.state != "failed"]
    reasons = task.read_not_scored(files["results_dir"], unscored)
    with write_pages(out, task.folder) as building:
        sums = write_unit_pages(task.pages(inputs), list(scored), building / task.folder)
        add_page_files(ledger, task.page_files, sums, page_files, f"new {task.unit}")
        page = render(
            task.new.template,
            title=title,
            unit=task.unit,
            in_cohort=cohort_matches,
            appearances=appearances,
            failed=[
                (row.id, row.reason or reasons.get(row.id, "no reason was recorded"))
                for row in table
                if row.id not in scored
            ],
            settings=flat(model.settings()),
            versions=versions,
            model_sha256=checksum(model_dir / "model.keras"),
            ledger=ledger,
            external=external,
            **task.new.values(inputs),
        )
        (building / "index.html").write_text(page, encoding="utf-8")
        if matches is not None:
            (cohort_matches or CohortMatches([], [], [])).write(matches, task.unit)


def _trained(
    task: TaskReport, rows: Sequence[CohortRow], records: Path, ledger: Ledger
) -> TrainingAppearances:
    """Return how train and valid of a run look; archived states are left out."""
    paths = {row.id: records / f"{row.file}.json" for row in rows if row.split in TRAINED}
    # The images of a part share a file.
    sums = {
        f"{task.records}/{path.name}": checksum(path)
        for path in sorted(set(paths.values()))
        if path.exists()
    }
    if sums:
        ledger.add_group(f"{task.records}/<{task.unit}>.json", sums, "Unlike the training data")
    there = [row for row in rows if f"{task.records}/{row.file}.json" in sums]
    return training_appearances(there, lambda row: task.read_state(row, records))


def _with_earlier(
    task: TaskReport,
    matches: CohortMatches,
    table: Sequence[CohortRow],
    files: Mapping[str, Path],
    weights: Path | None,
) -> CohortMatches:
    """Add the matches with the cohorts of the models that the training started from."""
    if weights is None:
        return replace(matches, doubt="the weights that its training started from are not known")
    earlier, records = earlier_data(task, weights), files["records_dir"]
    for cohort in earlier.cohorts:
        if cohort.hashes:
            images = read_images(cohort.hashes)
            matches = matches.with_earlier(
                compare_with_images(table, records, images, task.kind), ""
            )
        elif cohort.folder:
            folder = cohort.folder / task.records
            compared = compare_with_cohort(
                table, records, cohort.rows, folder, task.kind, task.file_of
            )
            matches = matches.with_earlier(compared, cohort.folder.name)
    described = files["model_dir"] / "settings.json"
    return replace(matches, doubt=doubt_of_pixels(task, earlier, described))
