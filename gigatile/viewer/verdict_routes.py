"""Requests with verdicts: add one, show those of a slide, export all."""

import asyncio
import re
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from gigatile.errors import UserError
from gigatile.serving.errors import RequestError
from gigatile.serving.inputs import parse_json
from gigatile.viewer.shown_slides import ShownSlides
from gigatile.viewer.verdicts import VerdictStore

# The fields of a request, and how many characters each can have.
FIELDS = {"verdict": 200, "comment": 4000, "reader": 200}
_ID = re.compile(r"[0-9a-f]{32}")
# C0 and C1, without tab, line feed and carriage return.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def router(shown: ShownSlides, verdicts: VerdictStore) -> APIRouter:
    """Return the routes of verdicts."""
    routes = APIRouter(tags=["Verdicts"])
    answers = _Answers(shown, verdicts)
    routes.post("/v1/jobs/{id}/verdicts", summary="Add a verdict on a slide")(answers.add)
    routes.get("/v1/jobs/{id}/verdicts", summary="The verdicts on a slide, newest first")(
        answers.show
    )
    routes.get("/v1/verdicts", summary="The newest verdict on each slide")(answers.latest)
    routes.get("/v1/verdicts.tsv", summary="All verdicts, as a table")(answers.export)
    return routes


class _Answers:
    def __init__(self, shown: ShownSlides, verdicts: VerdictStore) -> None:
        self._shown, self._verdicts = shown, verdicts

    async def add(self, request: Request, id: str) -> Response:
        """Add a verdict on a slide that the viewer shows."""
        slide = self._shown.find(id)
        fields = _fields(parse_json(await request.body()))
        try:
            predicted = await asyncio.to_thread(slide.predicted.summary)
        except UserError:
            raise RequestError(404, "files of this slide are missing or damaged") from None
        verdict = await asyncio.to_thread(
            self._verdicts.add,
            job=id,
            slide=slide.name,
            model=slide.model,
            version=slide.version,
            predicted=predicted,
            **fields,
        )
        return JSONResponse(verdict.shown(), 201)

    async def show(self, id: str) -> Any:
        """Return the verdicts on a slide, also of a job that was deleted."""
        if not _ID.fullmatch(id):
            raise RequestError(404, "no such job")
        verdicts = await asyncio.to_thread(self._verdicts.of_job, id)
        return {"verdicts": [verdict.shown() for verdict in verdicts]}

    async def latest(self) -> Any:
        """Return the newest verdict on each slide."""
        verdicts = await asyncio.to_thread(self._verdicts.latest)
        return {"verdicts": [verdict.shown() for verdict in verdicts]}

    async def export(self) -> Response:
        """Return all verdicts."""
        text = await asyncio.to_thread(lambda: "".join(self._verdicts.table()))
        headers = {"content-disposition": 'attachment; filename="verdicts.tsv"'}
        return Response(text, media_type="text/tab-separated-values", headers=headers)


def _fields(content: dict[str, Any]) -> dict[str, str]:
    """Return the fields of a verdict.

    Raises:
        RequestError: a field is missing, unknown, too long, or no text.
    """
    if unknown := sorted(content.keys() - FIELDS):
        raise RequestError(400, f"unknown key {unknown[0][:40]!r}; known: {', '.join(FIELDS)}")
    fields = {}
    for name, limit in FIELDS.items():
        value = content.get(name, "")
        if not isinstance(value, str) or len(value) > limit or _CONTROL.search(value):
            raise RequestError(
                400, f"{name}: must be text of up to {limit} characters, without control characters"
            )
        fields[name] = value.strip()
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError(400, f"{name}: is not valid Unicode") from None
    for name in ("verdict", "reader"):
        if not fields[name]:
            raise RequestError(400, f"{name}: must not be empty")
    return fields
