"""Serve the models of bundles: TensorFlow Serving's REST interface.

Only programs on this machine reach the server, unless --host is given together with a token.
"""

import argparse
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gigatile.errors import UserError, all_faults
from gigatile.serving.bundles import open_bundles
from gigatile.serving.settings import LOOPBACK, ServerSettings, read_token

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
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("bundles", type=Path, nargs="+", help="folders of bundles")
    parser.add_argument("--host", default=_FIELDS["host"].default, help="address (%(default)s)")
    parser.add_argument(
        "--port", type=int, default=_FIELDS["port"].default, help="0: a free one (%(default)s)"
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        help="file with the token that requests must have; only you may read it",
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

    from gigatile.serving.process import listen, serve

    opened = listen(settings)

    from gigatile.serving.app import create_app
    from gigatile.serving.metrics import ServerMetrics
    from gigatile.serving.registry import load_models

    metrics = ServerMetrics()
    models = load_models(bundles, settings, metrics.batch)

    def started(address: str) -> None:
        for model in models.models:
            print(f"{model.name}, version {model.version}: {address}/v1/models/{model.name}")
        print(f"all requests: {address}/docs", flush=True)

    serve(create_app(models, settings, metrics), settings, opened, started)


def settings_of(args: argparse.Namespace) -> ServerSettings:
    """Return the settings of the command line.

    Raises:
        UserError: lists all faults; or the server would be open to others without a token.
    """
    values: dict[str, Any] = {name: getattr(args, name) for name in ("host", "port", *_LIMITS)}
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
