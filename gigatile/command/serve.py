"""Serve the models of bundles: TensorFlow Serving's REST interface.

Only programs on this machine reach the server, unless --host is given together with a token.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gigatile.cohort.samples import read_samples
from gigatile.cohort.sheet import Member
from gigatile.command.configuration import (
    find_configuration,
    folder_of_paths,
    load,
    with_paths_from,
)
from gigatile.errors import UserError, all_faults
from gigatile.serving.bundles import open_bundles
from gigatile.serving.encoders import find_encoders
from gigatile.serving.settings import LOOPBACK, ServerSettings, read_token
from gigatile.settings.whole import Settings
from gigatile.tasks import find_task

if TYPE_CHECKING:
    from gigatile.viewer.shown_slides import ShownRun

_FIELDS = ServerSettings.model_fields
# Options with a number, and what they say.
_LIMITS = {
    "max_batch": "most tiles that the model scores at once",
    "batch_wait_ms": "milliseconds for which tiles wait for others, to share a batch",
    "max_queue": "most tiles that wait; further requests are refused",
    "max_body_bytes": "most bytes of a request",
    "max_instances": "most tiles of a request",
    "header_seconds": "seconds for a client to send the headers of a request",
    "body_seconds": "seconds for a client to send the body of a request",
    "request_seconds": "seconds for the prediction of a request",
    "max_connections": "most connections at the same time",
    "drain_seconds": "seconds for requests in flight, after SIGTERM",
    "max_upload_bytes": "most bytes of an uploaded slide",
    "max_jobs": "jobs of slides that run at the same time",
    "max_waiting_jobs": "jobs that wait; further ones are refused",
    "job_cores": "cores of each job",
    "job_seconds": "most seconds of a job",
    "job_memory_bytes": "most memory of a job",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("bundles", type=Path, nargs="*", help="folders of bundles")
    parser.add_argument("--host", default=_FIELDS["host"].default, help="address (%(default)s)")
    parser.add_argument(
        "--port", type=int, default=_FIELDS["port"].default, help="0: a free one (%(default)s)"
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        help="file with the token that requests must have; only you may read it",
    )
    parser.add_argument(
        "--work-dir",
        type=Path,
        help="folder for jobs of slides, with their results; without it, no slides are taken",
    )
    parser.add_argument(
        "--allow",
        type=Path,
        action="append",
        metavar="FOLDER",
        help="requests may name slides in this folder by their paths; can be given several times",
    )
    parser.add_argument(
        "--encoder",
        type=Path,
        action="append",
        metavar="FILE",
        help="the encoder of a model of embeddings; can be given several times",
    )
    parser.add_argument(
        "--run",
        type=Path,
        action="append",
        metavar="CONFIG",
        help="show the slides of this run in the viewer: its configuration, or the folder with "
        "config.yaml; can be given several times",
    )
    for name, text in _LIMITS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=float,
            default=_FIELDS[name].default,
            help=f"{text} (%(default)s)",
        )


def run(args: argparse.Namespace) -> None:
    """Load the models and serve them until SIGTERM."""
    settings = settings_of(args)
    bundles = open_bundles(args.bundles)
    encoders = find_encoders(bundles, settings.encoders)
    runs = open_runs(args.run or ())

    from gigatile.serving.process import listen, serve

    opened = listen(settings)

    from gigatile.serving.app import create_app
    from gigatile.serving.jobs import JobQueue
    from gigatile.serving.metrics import ServerMetrics
    from gigatile.serving.registry import load_models
    from gigatile.viewer.verdicts import open_verdicts

    metrics = ServerMetrics()
    models = load_models(bundles, settings, metrics.batch, encoders)
    jobs = JobQueue(settings, models) if settings.work_dir else None
    verdicts = open_verdicts(settings.work_dir) if settings.work_dir else None

    def started(address: str) -> None:
        for model in models.models:
            print(f"{model.name}, version {model.version}: {address}/v1/models/{model.name}")
        print(f"all requests: {address}/docs", flush=True)

    serve(
        create_app(models, settings, metrics, jobs, verdicts, runs),
        settings,
        opened,
        started,
        models.drain,
    )


def open_runs(targets: Sequence[Path]) -> "list[ShownRun]":
    """Return the runs of configurations.

    Raises:
        UserError: a configuration or a sheet has faults, a run has no results, or two runs have the
            same name.
    """
    if not targets:
        return []
    from gigatile.viewer.shown_slides import open_run, slides_of_sheet

    runs: dict[str, ShownRun] = {}
    for target in targets:
        configuration = find_configuration(target)
        folder = folder_of_paths(configuration)
        settings = with_paths_from(load(configuration), folder)
        if settings.encoder.embedded_with is not None:
            raise UserError(
                f"--run: {target}: its sheet names embeddings, so there are no slides to show"
            )
        bundle = settings.predict.bundle
        cohort, new, slides = (
            slides_of_sheet(Path(sheet), read(Path(sheet))) if sheet else ()
            for sheet, read in (
                (None if bundle else settings.samples, partial(_read_cohort, settings)),
                (settings.predict.samples, partial(_read_cohort, settings)),
                (settings.predict.slides, _read_slides),
            )
        )
        results = folder / "results" / settings.run
        model = Path(bundle) if bundle else results / "model"
        run = open_run(results, settings.task, model, cohort, new, slides)
        if run.name in runs:
            raise UserError(f"--run: {target}: there is another run with the name {run.name}")
        runs[run.name] = run
    return list(runs.values())


def _read_cohort(settings: Settings, sheet: Path) -> Sequence[Member]:
    return find_task(settings.task).read_sheet(sheet, settings, False, lambda path: True, False)


def _read_slides(sheet: Path) -> Sequence[Member]:
    return read_samples(sheet, False, lambda path: True, False)


def settings_of(args: argparse.Namespace) -> ServerSettings:
    """Return the settings of the command line.

    Raises:
        UserError: lists all faults; or the server would be open to others without a token.
    """
    values: dict[str, Any] = {name: getattr(args, name) for name in ("host", "port", *_LIMITS)}
    if not args.bundles and not args.run:
        raise UserError("name the folder of a bundle, or a run to show with --run")
    if args.run and not args.work_dir:
        raise UserError("--run: needs --work-dir, a folder for verdicts")
    if args.work_dir:
        values["work_dir"] = args.work_dir.absolute()
    for folder in args.allow or ():
        if not args.work_dir:
            raise UserError("--allow: needs --work-dir, a folder for the jobs of slides")
        if not folder.is_dir():
            raise UserError(f"--allow: {folder}: no such folder")
    for file in args.encoder or ():
        if not file.is_file():
            raise UserError(f"--encoder: {file}: no such file")
    values["encoders"] = tuple(file.absolute() for file in args.encoder or ())
    values["allowed_folders"] = tuple(folder.resolve() for folder in args.allow or ())
    if args.token_file:
        try:
            values["token"] = read_token(args.token_file)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"--token-file: {args.token_file}: {reason}") from None
    try:
        settings = ServerSettings(**values)
    except ValidationError as error:
        faults = [
            f"--{str(fault['loc'][0]).replace('_', '-')}: found {fault['input']}; "
            f"{fault['msg'].replace('Input should be', 'must be')}"
            for fault in error.errors()
        ]
        raise all_faults(f"{len(faults)} invalid option(s)", faults) from None
    if settings.token is None and not settings.is_local:
        raise UserError(
            f"--host {settings.host}: others could use the server; give --token-file with a token "
            f"that they must have, or listen on {LOOPBACK[0]}"
        )
    return settings
