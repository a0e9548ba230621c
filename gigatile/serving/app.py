"""The application: its routes, errors and pages."""

import html
import json
import sqlite3
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import prometheus_client
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from gigatile.serving import jobs_routes, tensorflow_rest
from gigatile.serving.errors import RequestError
from gigatile.serving.guard import Guard
from gigatile.serving.jobs import JobQueue
from gigatile.serving.metrics import ServerMetrics
from gigatile.serving.registry import ModelRegistry
from gigatile.serving.settings import ServerSettings
from gigatile.viewer import routes as viewer
from gigatile.viewer import verdict_routes
from gigatile.viewer.decoding import SlideProcesses
from gigatile.viewer.shown_slides import ShownRun, ShownSlides
from gigatile.viewer.verdicts import VerdictStore

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Gigatile: requests</title></head>
<body><h1>Requests</h1>
<p>Described for programs in <a href="openapi.json">openapi.json</a>.</p>
<table><thead><tr><th>Method</th><th>Address</th><th></th></tr></thead><tbody>
{rows}
</tbody></table></body></html>
"""


def create_app(
    models: ModelRegistry,
    settings: ServerSettings,
    metrics: ServerMetrics,
    jobs: JobQueue | None = None,
    verdicts: VerdictStore | None = None,
    runs: Sequence[ShownRun] = (),
) -> ASGIApp:
    """Return the application of the server.

    Args:
        models: with their queues, which start and stop with the application.
        settings: of the server.
        metrics: that /metrics shows.
        jobs: of slides; None: the server takes no slides.
        verdicts: on slides.
        runs: the viewer shows their slides, too.
    """
    # For the tiles that pages of the viewer show.
    slides = SlideProcesses(settings.job_cores, settings.tile_seconds)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        models.start()
        if jobs:
            jobs.start()
        yield
        models.stop()
        if jobs:
            jobs.stop()
            slides.stop()
        if verdicts:
            verdicts.close()

    app = FastAPI(
        title="Gigatile",
        description="Models of bundles, with the REST interface of TensorFlow Serving.",
        version=version("gigatile"),
        lifespan=lifespan,
        # FastAPI's pages load their scripts from another server.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # OpenTelemetry would take its exporters from the environment.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    metrics.watch(models)
    app.include_router(tensorflow_rest.router(models, settings))
    if jobs:
        app.include_router(jobs_routes.router(models, jobs, settings))
        shown = ShownSlides(models, jobs, runs)
        app.include_router(viewer.router(shown, slides))
        if verdicts:
            app.include_router(verdict_routes.router(shown, verdicts))
    _add_state(app, models, metrics)
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    for kind in (sqlite3.OperationalError, OSError):
        app.add_exception_handler(kind, _on_disk_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)
    return Guard(app, settings, metrics)


def _add_state(app: FastAPI, models: ModelRegistry, metrics: ServerMetrics) -> None:
    @app.get("/healthz", tags=["State"], summary="Whether the server runs")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", tags=["State"], summary="Whether the models are loaded")
    async def readyz() -> JSONResponse:
        ready = models.is_ready
        return JSONResponse({"status": "ok" if ready else "loading"}, 200 if ready else 503)

    @app.get("/metrics", tags=["State"], summary="Metrics for Prometheus")
    async def show_metrics() -> Response:
        return Response(
            prometheus_client.generate_latest(metrics.registry),
            media_type=prometheus_client.CONTENT_TYPE_LATEST,
        )

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(PAGE.format(rows="\n".join(_rows(app.openapi()))))

    @app.get("/", include_in_schema=False)
    async def start() -> PlainTextResponse:
        names = sorted(models.by_name)
        return PlainTextResponse(
            "Gigatile serves these models: " + ", ".join(names) + "\nRequests: /docs\n"
        )


def _rows(schema: Mapping[str, Any]) -> list[str]:
    return [
        f"<tr><td>{method.upper()}</td><td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(route.get('summary', ''))}</td></tr>"
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
    ]


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return JSONResponse({"error": error.message}, error.status, headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Answer a request without a route; with what is at fault, in the same form."""
    assert isinstance(error, HTTPException)
    text = {404: "Malformed request: no such address; see /docs", 405: "Method Not Allowed"}
    message = text.get(error.status_code, str(error.detail))
    return JSONResponse({"error": message}, error.status_code, error.headers)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"error": json.dumps(error.errors(), default=str)[:500]}, 400)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Record a client that left before its request was whole; nobody receives the answer."""
    return JSONResponse({"error": "the client closed the connection"}, 499)


async def _on_disk_error(request: Request, error: Exception) -> Response:
    """Answer a request that needs a file or the database on a disk that fails or is full."""
    # Not the path, which may have the name of a patient.
    reason = error.strerror if isinstance(error, OSError) else error
    print(f"error: {reason}", file=sys.stderr, flush=True)
    return JSONResponse({"error": "the server's disk is full, or fails"}, 507)


async def _on_bug(request: Request, error: Exception) -> Response:
    """Answer a request that met a bug; the server's log has its traceback."""
    return JSONResponse({"error": "internal error; the log of the server has the reason"}, 500)
