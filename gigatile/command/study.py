"""Run a study: several variants of a configuration, in all folds, chosen or compared.

STUDY is a file that names the configuration and what differs. The runs share what they prepare. By
default, the variant with the best figure on the validation splits is chosen, and only that one is
tested. What follows `--` goes to Snakemake.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from rich.console import Console
from rich.table import Table

from gigatile.command.configuration import (
    CONFIGURATION,
    CONFIGURATIONS,
    folder_of_paths,
    project_folder,
    read_configuration,
)
from gigatile.command.dry_run import job_counts
from gigatile.command.run import PRINTING, snakemake_options
from gigatile.command.snakemake import query_snakemake
from gigatile.command.study_runs import Job, Runner
from gigatile.errors import UserError, all_faults
from gigatile.files import write_text
from gigatile.json_models import read_model
from gigatile.settings.section import check_section
from gigatile.settings.whole import Settings
from gigatile.studies.description import VALIDATED, Study, StudyRun, runs_of, variants_of
from gigatile.studies.sharing import settings_of, with_reuse
from gigatile.tasks import find_task

if TYPE_CHECKING:
    from gigatile.studies.results import StudyResults, Validation

CHOSEN_IN_FOLDS = (
    "The variant was chosen on the validation splits, which in all folds together contain every "
    "test patient. Hold patients out of all folds (split.held_out) to test without this."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("study", type=Path, metavar="STUDY", help="file of the study (.yaml)")
    parser.add_argument("--profile", help="profile of Snakemake, as for `gigatile run`")
    parser.add_argument(
        "--cores", default="all", help="number of cores on this machine, for each run (all)"
    )
    parser.add_argument(
        "--at-once", type=int, help="runs at the same time (1; with --profile, up to 20)"
    )
    parser.add_argument("-n", "--dry-run", action="store_true", help="list what would run")
    parser.add_argument(
        "--verify", action="store_true", help="only compare the results with the present files"
    )


@dataclass(frozen=True)
class _Planned:
    """A study that is ready to run.

    Attributes:
        folder: that the paths in the configurations are relative to.
        runs: with their settings.
        preparing: the runs that others reuse outputs of, in the order in which they prepare.
    """

    study: Study
    folder: Path
    runs: Mapping[StudyRun, Settings]
    preparing: Sequence[str]

    def job(self, run: StudyRun, *targets: str) -> Job:
        """Return the job that makes files of a run; none named: all."""
        paths = (f"results/{run.name}/{target}" for target in targets)
        return Job(run.name, self.configuration(run), self.runs[run], tuple(paths))

    def configuration(self, run: StudyRun) -> Path:
        """Return the path of the configuration of a run."""
        folder = self.folder / "results" / self.study.study
        return folder / CONFIGURATIONS / f"{run.name}.yaml"


def run(args: argparse.Namespace) -> None:
    """Run all variants, choose or compare, and print the results."""
    if args.at_once is not None and args.at_once < 1:
        raise UserError(f"--at-once {args.at_once}: must be at least 1")
    if printing := [o for o in args.snakemake if o.partition("=")[0] in PRINTING]:
        raise UserError(f"{printing[0]}: not for a study; use `gigatile run` with one of its runs")
    planned = _plan(args.study.absolute())
    os.chdir(planned.folder)  # paths of logs are relative to it
    if args.verify:
        _verify(planned)
        return
    options = snakemake_options(args)
    if args.dry_run:
        _print_dry_run(planned, options)
        return
    for study_run in planned.runs:
        _write_configuration(planned, study_run)
    at_once = args.at_once or (20 if args.profile else 1)
    console = Console(stderr=True, highlight=False)
    try:
        _run(planned, Runner(options, at_once, console), Runner(options, 1, console))
    except KeyboardInterrupt:
        console.print("stopped; the same command continues")
        sys.exit(130)


def _plan(file: Path) -> _Planned:
    """Read a study.

    Raises:
        UserError: lists all faults of the file, or of the settings of its runs.
    """
    study = check_section(Study, read_configuration(file), str(file))
    base = file.parent / study.config
    runs = runs_of(study, read_configuration(base))
    settings = settings_of(study, runs, read_configuration(project_folder() / CONFIGURATION))
    folder = folder_of_paths(base)
    if (folder / "results" / study.study / "splits.json").exists():
        raise UserError(
            f"{file}: study: {study.study} is the name of a run in {folder / 'results'}; give the "
            "study another name"
        )
    changed, preparing = with_reuse(settings)
    planned = _Planned(study, folder, changed, preparing)
    others = [
        run.name
        for run in changed
        if (folder / "results" / run.name).exists() and not planned.configuration(run).exists()
    ]
    if others:
        raise UserError(
            f"{file}: {folder / 'results'} has {', '.join(others)}, and no configuration of it "
            "from this study: remove it, or give the study another name"
        )
    return planned


def _verify(planned: _Planned) -> None:
    """Refuse results of the study that are not those of the present files."""
    from gigatile.studies.results import StudyResults, outdated

    folder = Path("results") / planned.study.study
    written = read_model(StudyResults, folder / "study.json")
    faults = outdated(Path("results"), written, dict(variants_of(planned.study)))
    if faults:
        raise all_faults(f"{folder}: its results are out of date; run the study again", faults)
    print(f"{folder}: its results are those of {len(written.inputs)} present files")


def _write_configuration(planned: _Planned, run: StudyRun) -> None:
    path = planned.configuration(run)
    text = (
        f"# Run {run.name} of study {planned.study.study}: written by `gigatile study`.\n"
        + yaml.safe_dump(dict(run.values), sort_keys=False, allow_unicode=True)
    )
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def _run(planned: _Planned, runner: Runner, alone: Runner) -> None:
    """Prepare, train and validate all runs; then test the chosen or all variants."""
    study, runs = planned.study, list(planned.runs)
    for each in runs:
        if each.name in planned.preparing:
            _no_failure(alone.run([planned.job(each, "states.tsv")]))
    if study.test == "all":
        _no_failure(runner.run([planned.job(each) for each in runs]))
    else:
        jobs = [planned.job(each, *_validation(planned.runs[each])) for each in runs]
        _no_failure(runner.run(jobs))
    # Imports scikit-learn and pandas, which takes a second.
    from gigatile.studies.results import validated

    validation = validated(Path("results"), runs, dict(variants_of(study)))
    chosen = validation.variants[0].name
    if study.test == "chosen":
        _no_failure(runner.run([planned.job(each) for each in runs if each.variant == chosen]))
    _write_results(planned, validation, chosen)


def _write_results(planned: _Planned, validation: "Validation", chosen: str) -> None:
    """Evaluate the tested variants together, write the files of the study, and print them."""
    from gigatile.studies.page import write_results
    from gigatile.studies.results import StudyResults, TestedVariant, inputs_of_tests, tested

    study, results = planned.study, Path("results")
    names = [variant.name for variant in validation.variants]
    names = [chosen] if study.test == "chosen" else names
    runs = [each for each in planned.runs if each.variant in names]
    variants: list[TestedVariant] = []
    compared = None
    task = find_task(planned.runs[runs[0]].task)
    if task.classifies_slides or task.predicts_outcomes:
        variants, compared = tested(results, study, runs, names)
    is_held_out = all(planned.runs[each].split.held_out for each in runs)
    chose = study.test == "chosen" and len(validation.variants) > 1
    outcome = StudyResults(
        study=study.study,
        criterion=validation.criterion,
        lowest=validation.lowest,
        variants=list(validation.variants),
        chosen=chosen,
        test=study.test,
        tested=variants,
        reports={each.name: f"../{each.name}/report/index.html" for each in runs},
        doubts=[CHOSEN_IN_FOLDS] if chose and study.folds and not is_held_out else [],
        inputs={**validation.inputs, **inputs_of_tests(results, variants)},
    )
    page = write_results(outcome, compared, results / study.study)
    _print_results(outcome)
    print(f"written   {page.absolute()}")


def _print_results(results: "StudyResults") -> None:
    from gigatile.report.pages import figure, interval

    table = Table("variant", "runs", f"{results.criterion} on valid", "deviation")
    for variant in results.variants:
        numbers = (variant.mean, variant.deviation)
        shown = ("" if number is None else f"{number:.3f}" for number in numbers)
        table.add_row(variant.name, str(len(variant.runs)), *shown)
    console = Console()
    console.print(table)
    if results.tested:
        # The third figure, of the page, does not fit in a line.
        names = list(results.tested[0].figures)[:2]
        table = Table("tested", "slides", "patients", *names)
        for tested in results.tested:
            shown_figures = (tested.figures[name] for name in names)
            cells = (f"{figure(m.value)} ({interval(m)})" for m in shown_figures)
            table.add_row(tested.name, str(tested.slides), str(tested.patients), *cells)
        console.print(table)
    for doubt in results.doubts:
        print(f"doubt     {doubt}")


def _print_dry_run(planned: _Planned, options: Sequence[str]) -> None:
    """Print the number of jobs of each run. Runs count what they would reuse as jobs, too."""
    study, total = planned.study, 0
    for each in planned.runs:
        _write_configuration(planned, each)
        printed = query_snakemake(
            planned.configuration(each), ["--dry-run", "--quiet", "rules", *options]
        )
        jobs = job_counts(printed).pop("total", 0)
        total += jobs
        reuse = each.values.get("reuse")
        role = f"reuses {reuse}" if reuse else ""
        print(f"{each.name:40} {jobs:>7,} job{'s' if jobs != 1 else ' '}  {role}")
    print(f"This was a dry run of {total:,} jobs of study {study.study}; nothing has been run.")


def _validation(settings: Settings) -> tuple[str, ...]:
    """Return what a run has when it is validated, and not yet tested."""
    if find_task(settings.task).classifies_slides:
        return ("model/versions.json", VALIDATED)
    return ("model/versions.json",)


def _no_failure(failed: Sequence[str]) -> None:
    if failed:
        raise UserError(
            f"{len(failed)} run(s) failed: {', '.join(failed)}. Fix the cause and run the same "
            "command again. Finished jobs are not repeated"
        )
