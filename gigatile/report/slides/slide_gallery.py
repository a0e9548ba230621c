"""The section with pictures of the wrong predictions, and of the lowest scores of a label."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gigatile.report.pages import data_uri
from gigatile.report.slides.gallery import read_overview, smaller
from gigatile.report.slides.inputs import ScoredSlide
from gigatile.report.slides.metrics import SlideRun
from gigatile.report.task_report import Content, Section
from gigatile.report.unit_pages import TILE_FOLDER

TEMPLATE = Path(__file__).parent / "templates/slide_gallery.html.j2"
# Limits that keep the first page below 1 MB.
SHOWN_WRONG, SHOWN_LOWEST = 36, 12
PICTURE_BYTES = 12_000


def lowest(scored: Iterable[ScoredSlide]) -> list[ScoredSlide]:
    """Return slides by the mean score of their label, the lowest first."""
    return sorted(scored, key=lambda slide: (slide.scores[slide.label or ""], slide.id))


def _content(run: SlideRun) -> Content:
    scored = lowest(slide for slide in run.scored if slide.id in run.states)
    wrong = [slide for slide in scored if slide.call_mean != slide.label]
    right = [slide for slide in scored if slide.call_mean == slide.label]
    galleries = [
        {"title": title, "all": len(slides), "slides": [_picture(run, s) for s in slides[:limit]]}
        for title, slides, limit in (
            ("Wrong predictions", wrong, SHOWN_WRONG),
            ("Lowest scores of correct predictions", right, SHOWN_LOWEST),
        )
    ]
    return Content({"galleries": galleries})


def _picture(run: SlideRun, slide: ScoredSlide) -> dict[str, Any]:
    """Return a slide with a small picture of its overview."""
    source = run.states[slide.id].source
    path = run.files["records_dir"].with_name(TILE_FOLDER) / f"{slide.id}.jpg"
    image = ""
    if source.width and source.height:
        overview = read_overview(path, source.width, source.height)
        image = data_uri(smaller(overview, PICTURE_BYTES, path), "image/jpeg")
    return {"slide": slide, "score": slide.scores[slide.label or ""], "image": image}


SECTION = Section("gallery", "Wrong predictions and lowest scores", TEMPLATE, _content, "Gallery")
