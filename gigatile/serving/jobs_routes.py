"""Requests with whole slides: uploads, jobs, their progress and their results."""

import asyncio
import json
import math
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse

from gigatile.cohort.sheet import SEVERAL_FILES
from gigatile.errors import UserError
from gigatile.files import named_in_errors
from gigatile.paths import fault_of_path
from gigatile.serving.errors import RequestError
from gigatile.serving.guard import UPLOADS
from gigatile.serving.inputs import parse_json
from gigatile.serving.job_store import DONE, Job, new_id
from gigatile.serving.jobs import SLIDE, JobQueue, is_final
from gigatile.serving.registry import ModelRegistry, ServedModel
from gigatile.serving.settings import ServerSettings
from gigatile.slides.index import read_mask
from gigatile.slides.slide_files import SLIDE_SUFFIXES
from gigatile.tables import read_table
from gigatile.tasks import find_task
from gigatile.viewer.layers import kind_in, predicted_slide
from gigatile.viewer.outlines import DetectedSlide

_PARQUET = "application/vnd.apache.parquet"
# Files of a job by their names in addresses: the file, and its media type. A classifier and a
# detector of instances leave different ones.
FILES = {
    "page.html": ((f"pages/slides/{SLIDE}.html", f"slide_pages/slides/{SLIDE}.html"), "text/html"),
    "slides.tsv": (("slides.tsv",), "text/tab-separated-values"),
    "tiles.tsv": (("tiles.tsv",), "text/tab-separated-values"),
    "tiles.parquet": (("tiles.parquet",), _PARQUET),
    "map.parquet": ((f"maps/{SLIDE}.parquet",), _PARQUET),
    "instances.parquet": ((f"slides/{SLIDE}.parquet",), _PARQUET),
    "outlines.geojson.gz": ((f"slides/{SLIDE}.geojson.gz",), "application/gzip"),
    "overview.jpg": ((f"tiles/{SLIDE}.jpg", f"slides/{SLIDE}.jpg"), "image/jpeg"),
    "tissue.png": ((f"tiles/{SLIDE}.parquet",), "image/png"),
}
# Free space that an upload leaves, in bytes.
RESERVE = 100_000_000
_ID = re.compile(r"[0-9a-f]{32}")
PAGE = 100


class _Wanted(NamedTuple):
    """The fields of a request for a job."""

    model: ServedModel
    mpp: float | None


def router(models: ModelRegistry, jobs: JobQueue, settings: ServerSettings) -> APIRouter:
    """Return the routes of slides and jobs."""
    routes = APIRouter(tags=["Slides"])
    answers = _Answers(models, jobs, settings)
    routes.post(UPLOADS, summary="Predict a slide: upload it, or name its path")(answers.add)
    routes.get("/v1/jobs", summary="The newest jobs")(answers.newest)
    routes.get("/v1/jobs/{id}", summary="State of a job")(answers.show)
    routes.get("/v1/jobs/{id}/events", summary="Its progress, as server-sent events")(
        answers.events
    )
    routes.get("/v1/jobs/{id}/result", summary="Its prediction")(answers.result)
    routes.get("/v1/jobs/{id}/files/{name}", summary=f"A file: {', '.join(FILES)}")(answers.file)
    routes.post("/v1/jobs/{id}/cancel", summary="Cancel a job")(answers.cancel)
    routes.delete("/v1/jobs/{id}", summary="Delete a job that has ended, and its files")(
        answers.delete
    )
    return routes


class _Answers:
    def __init__(self, models: ModelRegistry, jobs: JobQueue, settings: ServerSettings) -> None:
        self._models, self._jobs, self._settings = models, jobs, settings
        # The predictions of jobs that are done, by their ids.
        self._calls: dict[str, str] = {}

    async def add(self, request: Request) -> Response:
        """Add a job: for the file in the body, or for the path in a JSON body."""
        if len(self._jobs.store.with_state("queued")) >= self._settings.max_waiting_jobs:
            raise RequestError(503, "too many jobs wait; try again later", retry_after=60)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            content = parse_json(await request.body())
            if unknown := sorted(content.keys() - {"path", "name", "model", "version", "mpp"}):
                raise RequestError(400, f"unknown key {unknown[0][:40]!r}")
            source = self._allowed(content.get("path"))
            name = _display_name(content.get("name", source.name))
            wanted = self._wanted(content)
            id = new_id()
            self._jobs.folder(id).mkdir()
        else:
            name = _display_name(request.query_params.get("name", ""))
            wanted = self._wanted(request.query_params)
            id = new_id()
            source = await self._receive(request, id, name)
        model = wanted.model
        try:
            job = self._jobs.add(id, source, name, model.name, model.version, wanted.mpp)
        except BaseException:
            shutil.rmtree(self._jobs.folder(id), ignore_errors=True)
            raise
        return JSONResponse(job.shown(), 202, {"Location": f"/v1/jobs/{id}"})

    async def newest(self, request: Request) -> Any:
        """Return the newest jobs, with the number from which the next page begins."""
        before = request.query_params.get("before", "")
        if before and not re.fullmatch(r"[0-9]{1,18}", before):
            raise RequestError(400, "before: must be a whole number")
        newest = self._jobs.store.newest(PAGE + 1, int(before) if before else None)
        shown = newest[:PAGE]
        following = shown[-1].number if len(newest) > PAGE else None
        predicted = await asyncio.to_thread(lambda: [self._predicted(job) for job in shown])
        jobs = [job.shown() | {"predicted": p} for job, p in zip(shown, predicted, strict=True)]
        return {"jobs": jobs, "before": following}

    async def show(self, id: str) -> Any:
        """Return the state of a job."""
        return self._job(id).shown()

    async def events(self, request: Request, id: str) -> Response:
        """Return the states of a job as they change, until it has ended."""
        job = self._job(id)
        seen = request.headers.get("last-event-id", "")
        revision = int(seen) if re.fullmatch(r"[0-9]{1,18}", seen) else 0

        async def stream() -> AsyncIterator[str]:
            last, quiet = revision, time.monotonic()
            current: Job | None = job
            while current is not None:
                if current.revision != last:
                    last, quiet = current.revision, time.monotonic()
                    yield f"id: {last}\nevent: state\ndata: {json.dumps(current.shown())}\n\n"
                elif time.monotonic() - quiet > 15:
                    quiet = time.monotonic()
                    yield ": waiting\n\n"  # so that a proxy does not close the connection
                if is_final(current) or not self._models.is_ready:
                    return
                await asyncio.sleep(0.2)
                current = self._jobs.store.get(id)

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def result(self, id: str) -> Any:
        """Return the prediction of a job that is done."""
        job = self._done(id)
        if self._detects(job):
            return await asyncio.to_thread(self._instances, job)
        (row,) = read_table(self._jobs.results(job) / "slides.tsv", ("slide",))
        matches = read_table(self._jobs.results(job) / "in_cohort.tsv", ("slide", "same"))
        return {
            **job.shown(),
            "tiles": int(row["tiles"]),
            **self._prediction(job, row),
            "in_cohort": [match["same"] for match in matches],
        }

    def _prediction(self, job: Job, row: Mapping[str, str]) -> dict[str, Any]:
        """Return the prediction in a row of slides.tsv: scores and classes, or an outcome."""
        bundle = self._models.find(job.model, job.version).bundle
        if find_task(bundle.manifest.task).predicts_outcomes:
            name = "number" if kind_in(bundle.described) == "number" else "log_hazard_ratio"
            return {"predicted": {name: float(row["predicted"])}}
        scores = {key[2:]: float(value) for key, value in row.items() if key.startswith("p_")}
        calls = {key: value for key, value in row.items() if key.startswith("call_")}
        return {"scores": scores, "predicted": calls}

    def _instances(self, job: Job) -> Any:
        """Return the instances that were detected on a slide."""
        results = self._jobs.results(job)
        state = DetectedSlide(results / "slides", SLIDE).state()
        matches = read_table(results / "slides_in_cohort.tsv", ("slide", "same"))
        return {
            **job.shown(),
            "instances": state.instances,
            "cut": state.cut,
            "in_cohort": [match["same"] for match in matches],
        }

    async def file(self, id: str, name: str) -> Response:
        """Return a file of a job that is done."""
        job = self._done(id)
        if name not in FILES:
            raise RequestError(404, f"no such file; must be one of {', '.join(FILES)}")
        candidates, kind = FILES[name]
        paths = (self._jobs.results(job) / candidate for candidate in candidates)
        path = next(filter(Path.is_file, paths), None)
        if path is None:
            raise RequestError(404, "this job has no such file")
        if name == "tissue.png":
            try:
                return Response(read_mask(path), media_type=kind)
            except UserError:
                raise RequestError(404, "files of this job are missing or damaged") from None
        # The page has its own policy, which allows only what is in it.
        headers = (
            {"content-security-policy": "frame-ancestors 'none'"} if kind == "text/html" else {}
        )
        return FileResponse(path, media_type=kind, headers=headers)

    def _predicted(self, job: Job) -> str | None:
        """Return the prediction of a job that is done, in a few words; or None."""
        if job.state == DONE and job.id not in self._calls:
            try:
                results = self._jobs.results(job)
                if self._detects(job):
                    self._calls[job.id] = DetectedSlide(results / "slides", SLIDE).summary()
                else:
                    bundle = self._models.find(job.model, job.version).bundle
                    self._calls[job.id] = predicted_slide(bundle, results, SLIDE).summary()
            except (RequestError, UserError, ValueError, OSError):
                return None
        return self._calls.get(job.id)

    async def cancel(self, id: str) -> Any:
        """Cancel a job."""
        self._job(id)
        if not self._jobs.cancel(id):
            raise RequestError(409, "the job has ended")
        return JSONResponse({"id": id}, 202)

    async def delete(self, id: str) -> Any:
        """Delete a job."""
        self._job(id)
        if not await asyncio.to_thread(self._jobs.delete, id):
            raise RequestError(409, "the job has not ended; cancel it first")
        return {"id": id}

    def _detects(self, job: Job) -> bool:
        """Return whether the model of a job detects instances; else, it predicts slides.

        Raises:
            RequestError: the server no longer has this model.
        """
        manifest = self._models.find(job.model, job.version).bundle.manifest
        return find_task(manifest.task).detects_on_slides

    def _job(self, id: str) -> Job:
        job = self._jobs.store.get(id) if _ID.fullmatch(id) else None
        if job is None:
            raise RequestError(404, "no such job")
        return job

    def _done(self, id: str) -> Job:
        job = self._job(id)
        if job.state != DONE:
            raise RequestError(409, f"the job has the state {job.state}")
        return job

    def _wanted(self, fields: Any) -> _Wanted:
        """Return the model and the scale in the fields of a request."""
        name, version, mpp = (fields.get(key) for key in ("model", "version", "mpp"))
        names = sorted(self._models.by_name)
        if name is None and len(names) == 1:
            name = names[0]
        if not isinstance(name, str):
            raise RequestError(400, f"model: must be one of {', '.join(names)}")
        if version is not None and not re.fullmatch(r"[0-9]{1,18}", str(version)):
            raise RequestError(400, "version: must be a whole number")
        model = self._models.find(name, None if version is None else int(version))
        manifest = model.bundle.manifest
        if "tiles" not in manifest.settings and not find_task(manifest.task).detects_on_slides:
            raise RequestError(400, f"model: {name} is not for slides; use gigatile predict")
        try:
            scale = None if mpp is None else float(mpp)
        except (TypeError, ValueError):
            scale = math.nan
        if scale is not None and not 0.01 <= scale <= 100:
            raise RequestError(400, "mpp: must be from 0.01 to 100 micrometres per pixel")
        return _Wanted(model, scale)

    def _allowed(self, path: object) -> Path:
        """Return a slide's file below the allowed folders.

        The answer is the same for files that are missing, and for those that may not be read.
        """
        refused = RequestError(404, "path: no such slide in the folders that the server may read")
        if not isinstance(path, str) or not path.startswith("/") or len(path) > 4096:
            raise refused
        try:
            resolved = Path(path).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            raise refused from None
        if (
            not any(resolved.is_relative_to(folder) for folder in self._settings.allowed_folders)
            or resolved.suffix.lower() not in SLIDE_SUFFIXES
            or not resolved.is_file()
            or fault_of_path(resolved)
        ):
            raise refused
        return resolved

    async def _receive(self, request: Request, id: str, name: str) -> Path:
        """Write the body of a request to the folder of a job; return the file."""
        suffix = Path(name).suffix.lower()
        if suffix not in SLIDE_SUFFIXES or suffix in SEVERAL_FILES:
            some = ", ".join(sorted(set(SLIDE_SUFFIXES) - set(SEVERAL_FILES)))
            raise RequestError(400, f"name: must be the slide's file name, with one of {some}")
        announced = int(request.headers.get("content-length", "0") or 0)
        free = shutil.disk_usage(self._jobs.folder(id).parent).free
        if announced + RESERVE > free:
            raise RequestError(507, "not enough disk space for the slide")
        folder = self._jobs.folder(id)
        path, received = folder / f"{SLIDE}{suffix}", 0
        try:
            folder.mkdir()
            with named_in_errors(None), path.open("xb") as file:
                async for part in request.stream():
                    received += len(part)
                    await asyncio.to_thread(file.write, part)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            if not received:
                raise RequestError(400, "the body must be the slide's file")
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise RequestError(507, "the slide could not be stored; is the disk full?") from None
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return path


def _display_name(name: object) -> str:
    """Return the name of a slide for people: the end of a path, without control characters."""
    if not isinstance(name, str):
        raise RequestError(400, "name: must be a text")
    last = re.split(r"[/\\]", name)[-1]
    return "".join(character for character in last if character.isprintable())[:200]
