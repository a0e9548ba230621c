"""The pages of the viewer, and what they load: tiles and layers of the slides of jobs."""

import asyncio
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from gigatile.errors import UserError
from gigatile.serving.errors import RequestError
from gigatile.serving.job_store import DONE, Job
from gigatile.serving.jobs import SLIDE, JobQueue
from gigatile.serving.registry import ModelRegistry
from gigatile.tasks import find_task
from gigatile.viewer.decoding import SlideProcesses, SlideSize, UnreadableError
from gigatile.viewer.layers import PredictedSlide

STATIC = Path(str(files("gigatile.viewer"))) / "static"
# The files of the pages, and their media types.
FILES = {
    "viewer.js": "text/javascript",
    "slides.js": "text/javascript",
    "verdicts.js": "text/javascript",
    "compare.js": "text/javascript",
    "viewer.css": "text/css",
    "openseadragon/openseadragon.min.js": "text/javascript",
    "openseadragon/LICENSE.txt": "text/plain",
}
# Tiles and layers of a job do not change.
CACHE = {"cache-control": "private, max-age=3600"}
PAGES = {
    # OpenSeadragon sets styles of elements, but adds no scripts.
    "content-security-policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    # The page with two slides has each in a frame.
    "frame-src 'self'; frame-ancestors 'self'"
}
_ID = re.compile(r"[0-9a-f]{32}")


def router(models: ModelRegistry, jobs: JobQueue, slides: SlideProcesses) -> APIRouter:
    """Return the routes of the viewer."""
    routes = APIRouter(tags=["Viewer"])
    answers = _Answers(models, jobs, slides)
    routes.get("/viewer/", include_in_schema=False)(_page("slides.html"))
    routes.get("/viewer/slides/{id}", include_in_schema=False)(_page("viewer.html"))
    routes.get("/viewer/compare", include_in_schema=False)(_page("compare.html"))
    routes.get("/viewer/static/{name:path}", include_in_schema=False)(_static)
    routes.get("/v1/jobs/{id}/view", summary="Size, layers and scores of the tiles")(answers.view)
    routes.get("/v1/jobs/{id}/layers/{name}.png", summary="A layer, as PNG")(answers.layer)
    routes.get(
        "/v1/jobs/{id}/zoom/{level}/{column}_{row}.jpg", summary="A deep-zoom tile, as JPEG"
    )(answers.tile)
    return routes


def _page(name: str) -> Any:
    async def page() -> Response:
        return Response((STATIC / name).read_bytes(), media_type="text/html", headers=PAGES)

    return page


async def _static(name: str) -> Response:
    if name not in FILES:
        raise RequestError(404, "no such file")
    headers = {"cache-control": "private, no-cache"}
    return Response((STATIC / name).read_bytes(), media_type=FILES[name], headers=headers)


class _Answers:
    def __init__(self, models: ModelRegistry, jobs: JobQueue, slides: SlideProcesses) -> None:
        self._models, self._jobs, self._slides = models, jobs, slides
        self._sizes: dict[str, SlideSize] = {}

    async def view(self, id: str) -> Any:
        """Return what the page of a slide needs."""
        job = self._job(id)
        size = await self._size(job)
        content = await asyncio.to_thread(_call, self._predicted(job).describe, size)
        return JSONResponse({**job.shown(), **content})

    async def layer(self, id: str, name: str) -> Response:
        """Return a layer."""
        data = await asyncio.to_thread(_call, self._predicted(self._job(id)).layer, name)
        if data is None:
            raise RequestError(404, "no such layer")
        return Response(data, media_type="image/png", headers=CACHE)

    async def tile(self, id: str, level: str, column: str, row: str) -> Response:
        """Return a deep-zoom tile."""
        job = self._job(id)
        if not all(re.fullmatch(r"[0-9]{1,7}", text) for text in (level, column, row)):
            raise RequestError(404, "no such tile")
        numbers = int(level), int(column), int(row)
        try:
            data = await asyncio.to_thread(self._slides.tile, Path(job.source), *numbers)
        except UnreadableError as error:
            raise RequestError(404, str(error)) from None
        return Response(data, media_type="image/jpeg", headers=CACHE)

    def _job(self, id: str) -> Job:
        job = self._jobs.store.get(id) if _ID.fullmatch(id) else None
        if job is None:
            raise RequestError(404, "no such job")
        if job.state != DONE:
            raise RequestError(409, f"the job has the state {job.state}")
        return job

    def _predicted(self, job: Job) -> PredictedSlide:
        model = self._models.find(job.model, job.version)
        manifest = model.bundle.manifest
        if not find_task(manifest.task).validates_externally:
            raise RequestError(400, "the viewer shows slides that a model classifies")
        is_whole = manifest.task == "slide_classification"
        return PredictedSlide(self._jobs.results(job), SLIDE, manifest.classes, is_whole)

    async def _size(self, job: Job) -> SlideSize:
        if job.id not in self._sizes:
            try:
                size = await asyncio.to_thread(self._slides.size, Path(job.source))
            except UnreadableError as error:
                raise RequestError(404, str(error)) from None
            self._sizes[job.id] = size
        return self._sizes[job.id]


def _call(function: Any, *arguments: Any) -> Any:
    """Call a function that reads the files of a job."""
    try:
        return function(*arguments)
    except UserError:
        raise RequestError(404, "files of this job are missing or damaged") from None
