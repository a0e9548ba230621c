"""Predictions by an ensemble: each model predicts, and the mean of all is written."""

import argparse
import os
import shutil
from pathlib import Path

from rich.console import Console

from gigatile.bundle.ensemble_validation import EXTERNAL, check_figures, validate_ensemble
from gigatile.bundle.ensembles import open_ensemble
from gigatile.command.bundle_run import prepare_run
from gigatile.command.configuration import load
from gigatile.command.run import snakemake_options
from gigatile.command.snakemake import external_page, new_data
from gigatile.command.study_runs import Job, Runner
from gigatile.errors import UserError
from gigatile.report.pooled_predictions import PREDICTED, pool_predictions


def predict_with_ensemble(args: argparse.Namespace) -> int:
    """Run the stages of prediction for each model, and write the mean; return the exit status.

    The first model's run tiles and embeds the slides, and the others reuse what it made.

    Args:
        args: of `gigatile predict`.

    Raises:
        UserError: the ensemble, a file or the folder cannot be used.
    """
    ensemble = open_ensemble(args.target.absolute())
    mean = ensemble.mean()
    out = (args.out or Path(f"{ensemble.name}-{args.samples[0].stem}")).absolute()
    first = ensemble.bundles[0].manifest.name
    jobs, evaluated = [], False
    for bundle in ensemble.bundles:
        name = bundle.manifest.name
        configuration, new = prepare_run(
            bundle,
            args.samples,
            out,
            args.encoder,
            file=f"{name}.yaml",
            reuse=None if name == first else first,
        )
        settings = load(configuration)
        external = external_page(settings, new)
        evaluated = bool(external)
        pages = [new_data(settings, new).page, *external]
        targets = tuple(f"results/{name}/predictions/{page}" for page in pages)
        jobs.append(Job(name, configuration, settings, targets))
    if evaluated:
        check_figures(ensemble)
    os.chdir(out)  # the paths of the settings, of logs and of tables are relative to it
    runner = Runner(snakemake_options(args), 1, Console(stderr=True, highlight=False))
    for job in jobs:
        if runner.run([job]):
            return 1
    folders = [Path("results") / job.name for job in jobs]
    pooled = pool_predictions(folders, mean, [bundle.folder for bundle in ensemble.bundles])
    if pooled is None:
        raise UserError(f"{out}: no model has predicted a slide")
    results = Path("results") / ensemble.name
    # Not there with a table of another call.
    shutil.rmtree(results / EXTERNAL, ignore_errors=True)
    pooled.write(results, mean.stated())
    page = None
    if evaluated:
        page = validate_ensemble(ensemble, results, folders, new, jobs[0].settings.evaluate)
    print(f"predicted {len(pooled.slides)} new slide(s); {pooled.agreement}")
    print(f"written   {results.absolute() / PREDICTED}")
    if page is not None:
        print(f"evaluated {page.absolute()}")
    for job in jobs:
        print(f"model     {job.name}: {Path(job.targets[0]).absolute()}")
    return 0
