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
from gigatile.viewer.annotations import Annotations, open_annotations
from gigatile.viewer.decoding import SlideProcesses, SlideSize, UnreadableError
from gigatile.viewer.shown_slides import ShownSlide, ShownSlides

STATIC = Path(str(files("gigatile.viewer"))) / "static"
# The files of the pages, and their media types.
FILES = {
    "viewer.js": "text/javascript",
    "outlines.js": "text/javascript",
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


def router(shown: ShownSlides, slides: SlideProcesses) -> APIRouter:
    """Return the routes of the viewer.

    Args:
        shown: the slides.
        slides: the processes that read them.
    """
    routes = APIRouter(tags=["Viewer"])
    answers = _Answers(shown, slides)
    routes.get("/viewer/", include_in_schema=False)(_page("slides.html"))
    routes.get("/viewer/slides/{id}", include_in_schema=False)(_page("viewer.html"))
    routes.get("/viewer/compare", include_in_schema=False)(_page("compare.html"))
    routes.get("/viewer/static/{name:path}", include_in_schema=False)(_static)
    routes.get("/v1/runs", summary="The slides of runs")(answers.runs)
    routes.get("/v1/jobs/{id}/view", summary="Size, layers and scores of the tiles")(answers.view)
    routes.get("/v1/jobs/{id}/layers/{name}.png", summary="A layer, as PNG")(answers.layer)
    routes.get("/v1/jobs/{id}/outlines", summary="Outlines of instances in a rectangle")(
        answers.outlines
    )
    routes.get("/v1/jobs/{id}/annotations", summary="Annotations in a rectangle")(
        answers.annotations
    )
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
    def __init__(self, shown: ShownSlides, slides: SlideProcesses) -> None:
        self._shown, self._slides = shown, slides

    async def view(self, id: str) -> Any:
        """Return what the page of a slide needs."""
        slide = self._shown.find(id)
        await asyncio.to_thread(_call, slide.check_source)
        size = await self._size(slide)
        content = await asyncio.to_thread(_call, slide.predicted.describe, size)
        known = {"id": id, "name": slide.name, "model": slide.model, "version": str(slide.version)}
        annotations = None
        if slide.annotations is not None:
            try:
                annotations = (await self._annotations(slide)).describe()
            except RequestError as error:  # the slide can be shown without them
                annotations = {"error": str(error)}
        return JSONResponse(known | content | {"annotations": annotations})

    async def layer(self, id: str, name: str) -> Response:
        """Return a layer."""
        slide = self._shown.find(id)
        data = await asyncio.to_thread(_call, slide.predicted.layer, name)
        if data is None:
            raise RequestError(404, "no such layer")
        return Response(data, media_type="image/png", headers=_cache(slide))

    async def outlines(self, id: str, box: str = "") -> Any:
        """Return the instances in a rectangle: `box` is x,y,width,height in pixels of level 0."""
        slide = self._shown.find(id)
        content = await asyncio.to_thread(_call, slide.predicted.outlines, _box(box))
        if content is None:
            raise RequestError(404, "no outlines")
        return JSONResponse(content)

    async def annotations(self, id: str, box: str = "") -> Any:
        """Return the annotations in a rectangle, as `outlines` does."""
        slide, rectangle = self._shown.find(id), _box(box)
        outlines = (await self._annotations(slide)).outlines
        return JSONResponse(await asyncio.to_thread(outlines.within, *rectangle))

    async def tile(self, id: str, level: str, column: str, row: str) -> Response:
        """Return a deep-zoom tile."""
        slide = self._shown.find(id)
        if not all(re.fullmatch(r"[0-9]{1,7}", text) for text in (level, column, row)):
            raise RequestError(404, "no such tile")
        numbers = int(level), int(column), int(row)
        try:
            data = await asyncio.to_thread(self._slides.tile, slide.source, *numbers)
        except UnreadableError as error:
            raise RequestError(404, str(error)) from None
        return Response(data, media_type="image/jpeg", headers=_cache(slide))

    async def runs(self) -> Any:
        """Return the slides of runs."""
        return {"slides": await asyncio.to_thread(self._shown.of_runs)}

    async def _annotations(self, slide: ShownSlide) -> Annotations:
        """Return the annotations of a slide.

        Raises:
            RequestError: there are none, or they cannot be read.
        """
        path = slide.annotations
        if path is None:
            raise RequestError(404, "no annotations")
        try:
            return await asyncio.to_thread(open_annotations, path)
        except UserError as error:
            reason = str(error).replace(f"{path.parent}/", "")
            raise RequestError(404, f"the annotations cannot be read: {reason:.500}") from None

    async def _size(self, slide: ShownSlide) -> SlideSize:
        try:
            return await asyncio.to_thread(self._slides.size, slide.source)
        except UnreadableError as error:
            raise RequestError(404, str(error)) from None


def _box(text: str) -> tuple[float, float, float, float]:
    """Return the rectangle x, y, width, height of a request.

    Raises:
        RequestError: the text is not one.
    """
    if not re.fullmatch(r"-?[0-9]{1,9}(,-?[0-9]{1,9}){3}", text):
        raise RequestError(400, "box: must be x,y,width,height in whole pixels of level 0")
    x, y, width, height = map(float, text.split(","))
    return x, y, width, height


def _cache(slide: ShownSlide) -> dict[str, str]:
    return CACHE if slide.is_immutable else {"cache-control": "private, no-cache"}


def _call(function: Any, *arguments: Any) -> Any:
    """Call a function that reads the files of a job."""
    try:
        return function(*arguments)
    except UserError:
        raise RequestError(404, "files of this job are missing or damaged") from None
