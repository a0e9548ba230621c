"""Writes the report of a run: the first page from its sections, and a page for each test sample."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gigatile.cohort.sheet_conflicts import check_columns
from gigatile.cohort.splits import SplitProof
from gigatile.files import read_json
from gigatile.json_models import read_model
from gigatile.records.manifest import read_manifest
from gigatile.report.appearance import compare_appearances, training_appearances
from gigatile.report.earlier_cohorts import earlier_data, earlier_images, initial_checks
from gigatile.report.inputs import CohortRow, ScoredRow, read_cohort, read_history
from gigatile.report.leakage import (
    Check,
    Evidence,
    chain_check,
    leakage_checks,
    manifest_faults,
    patients_in_two_splits,
)
from gigatile.report.pages import check_ids, render, write_pages
from gigatile.report.provenance import Ledger, checksum
from gigatile.report.shard_contents import read_contents
from gigatile.report.sites import with_sites
from gigatile.report.task_report import Banner, Run, TaskReport
from gigatile.report.unit_pages import PageFiles, PageInputs, add_page_files, write_unit_pages
from gigatile.settings.initial_weights import INITIAL_WEIGHTS

# The files of another run that is compared.
COMPARED = (
    *("evaluation/tiles.parquet", "evaluation/slides.tsv"),
    *("model/settings.json", "states.tsv"),
)


def write_report(
    task: TaskReport,
    files: Mapping[str, Path],
    out: Path,
    title: str,
    samples: Path | None = None,
    group_by: Sequence[str] = (),
    compare: Path | None = None,
    weights: Path | None = None,
    viewer: Callable[[str], str] | None = None,
    **options: Any,
) -> None:
    """Write index.html and a page for each test slide or case to `out`, all of them or none.

    Args:
        task: the report of the task.
        files: the inputs, by the names in `task.inputs`.
        out: folder for the pages.
        title: heading of index.html.
        samples: the sample sheet; None: no sites or groups, and the splits are not compared with
            it.
        group_by: columns of the sample sheet whose values are compared.
        compare: folder of another run; its maps are shown, too. None: none.
        weights: the file of initial weights. None: they were random, or published.
        viewer: returns the address of a slide in the viewer of a server; None: no links.
        options: of the pages of slides or cases.

    Raises:
        UserError: an input is missing, damaged, or does not match the others.
    """
    run = _read_run(task, files, samples, group_by, weights)
    if compare is not None:
        run = replace(run, compare=compare)
        for name in COMPARED:
            run.ledger.add(f"../{compare.name}/{name}", compare / name, "Agreement")
    ledger, evaluation = run.ledger, files["evaluation_dir"]
    rows = {row.id: row for row in run.cohort}
    page_files = PageFiles(
        files["records_dir"],
        evaluation,
        files["model_dir"] / "model.keras",
        task.records,
        "evaluation",
    )
    trained = training_appearances(run.cohort, lambda row: run.states[row.id])
    tested = {row.id: run.states[row.id] for row in run.scored if row.id in rows}
    run = replace(run, appearances=compare_appearances(tested, trained))
    inputs = PageInputs(
        files=page_files,
        model=run.model,
        rows=rows,
        scored={row.id: row for row in run.scored if row.id in rows},
        matches=lambda name: (),
        appearance=run.appearances.tests.get,
        options=options | {"compare": compare, "viewer": viewer},
    )
    with write_pages(out, task.folder) as building:
        names = list(inputs.scored)
        sums = write_unit_pages(task.pages(inputs), names, building / task.folder)
        add_page_files(ledger, task.page_files, sums, page_files, f"test {task.unit}")
        ledger.check("evaluation/metrics.json", run.metrics.inputs, evaluation / "metrics.json")
        run = replace(run, checks=_check_leakage(task, run, weights))
        (building / "index.html").write_text(_first_page(task, run, title), encoding="utf-8")


def _read_run(
    task: TaskReport,
    files: Mapping[str, Path],
    samples: Path | None,
    group_by: Sequence[str],
    weights: Path | None,
) -> Run:
    """Read and check what the stages before the report wrote."""
    ledger, evaluation, model_dir = Ledger(), files["evaluation_dir"], files["model_dir"]
    model = read_model(task.model, model_dir / "settings.json")
    cohort = read_cohort(files["table"], task.unit, task.columns, task.records_column)
    check_ids([row.id for row in cohort], files["table"], task.unit)
    cohort = [replace(row, stratum=task.stratum(row.label)) for row in cohort]
    splits = read_model(SplitProof, files["splits"])
    manifest = read_manifest(files["shards"])
    scores = evaluation / f"{task.unit}s.tsv"
    scored = task.read_scored(scores, model)
    check_ids([row.id for row in scored], scores, task.unit)
    metrics = task.read_metrics(evaluation / "metrics.json", model, scored)
    sheet = None
    if samples is not None:
        sheet = task.read_sheet(samples)
        check_columns(sheet, group_by, str(samples))
        cohort = with_sites(cohort, sheet)
        ledger.add("the sample sheet", samples, "Cohort: sites; Splits; Groups")
        ledger.check("splits.json", {"the sample sheet": splits.sheet_sha256}, files["splits"])
    ledger.add(task.table, files["table"], task.shows[task.table])
    ledger.add("splits.json", files["splits"], "Splits")
    ledger.add(
        "shards/manifest.json",
        files["shards"],
        f"Splits ({task.kind.record}s in the shards); Settings",
    )
    ledger.add_model(model_dir, task.shows["model/settings.json"])
    for name, shows in task.shows.items():
        if name.startswith("evaluation/"):
            ledger.add(name, evaluation / name.removeprefix("evaluation/"), shows)
    if weights is not None:
        ledger.add(INITIAL_WEIGHTS, weights, "nothing; the training started from them")
    ledger.check("model/settings.json", model.inputs, model_dir / "settings.json")
    states = {row.id: task.read_state(row, files["records_dir"]) for row in cohort}
    for name, shows in task.shows.items():
        if "/*" in name:
            folder = files["records_dir"].with_name(Path(name).parts[0])
            group = [name.replace("*", row.file) for row in cohort]
            sums = {file: checksum(folder / Path(file).name) for file in group}
            ledger.add_group(name, sums, shows)
    return Run(
        unit=task.unit,
        files=files,
        cohort=cohort,
        states=states,
        splits=splits,
        sheet=sheet,
        manifest=manifest,
        scored=scored,
        model=model,
        metrics=metrics,
        history=read_history(model_dir / "history.tsv", task.measure),
        versions=read_json(model_dir / "versions.json"),
        ledger=ledger,
        group_by=group_by,
        not_scored=task.read_not_scored(evaluation, _unscored_tests(cohort, scored)),
    )


def _unscored_tests(cohort: Sequence[CohortRow], scored: Sequence[ScoredRow]) -> list[str]:
    """Return the usable test slides or cases without scores."""
    with_scores = {row.id for row in scored}
    usable = [row.id for row in cohort if row.split == "test" and row.state != "failed"]
    return [name for name in usable if name not in with_scores]


def _check_leakage(task: TaskReport, run: Run, weights: Path | None) -> list[Check]:
    needed = {
        "model/settings.json": ("shards/manifest.json",),
        "evaluation/metrics.json": task.evaluated,
    }
    usable = [row for row in run.cohort if row.state != "failed"]
    labelled = any(row.label for row in run.cohort)
    earlier = earlier_data(task, weights)
    images = earlier_images(task, earlier, run.files["model_dir"] / "settings.json")
    contents = read_contents(
        run.files["shards"],
        run.files["records_dir"],
        usable,
        task.kind,
        task.unit,
        images.hashes,
    )
    return leakage_checks(
        Evidence(
            unit=task.unit,
            kind=task.kind,
            splits=run.splits,
            cohort=run.cohort,
            sheet=run.sheet,
            image_files=task.image_files(run),
            positions=task.positions(run),
            manifest_faults=manifest_faults(
                run.manifest, usable, task.kind, task.unit, task.records
            ),
            contents=contents,
            scored={
                row.id: {"patient": row.patient} | ({"label": row.label} if labelled else {})
                for row in run.scored
            },
            chain=chain_check(run.ledger, run.model.chosen.epoch, run.model.inputs, needed),
            chosen=run.model.chosen,
            criterion=task.criterion,
            history=run.history,
            initial=initial_checks(task, run, earlier, images, contents.known),
        )
    )


def _first_page(task: TaskReport, run: Run, title: str) -> str:
    sections: list[dict[str, Any]] = []
    banners: list[Banner] = []
    for section in task.sections:
        content = section.content(run)
        if content is None:
            continue
        banners += content.banners
        sections.append(
            {
                "anchor": section.anchor,
                "title": section.title,
                "link": section.link or section.title,
                "body": Markup(render(section.template, **content.values)),
            }
        )
    return render(
        task.template,
        title=title,
        unit=task.unit,
        sections=sections,
        banners=sorted(banners, key=lambda banner: not banner.alarm),
        shared_patients=patients_in_two_splits(run.checks),
        patients=len({row.patient for row in run.cohort}),
        left_out=len(run.left_out()),
        **task.summary(run),
    )
