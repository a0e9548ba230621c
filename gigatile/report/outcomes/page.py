"""The page of a slide with a predicted outcome."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.errors import UserError
from gigatile.report.outcomes.inputs import OutcomePredictor, PredictedSlide
from gigatile.report.pages import Neighbours, data_uri, render
from gigatile.report.provenance import checksum
from gigatile.report.slides import gallery
from gigatile.report.slides.inputs import read_state_of
from gigatile.report.unit_pages import PageInputs, WritePage
from gigatile.report.whole_slides.maps import read_map
from gigatile.slides.state import SlideState

TEMPLATE = Path(__file__).parent / "templates/outcome_slide.html.j2"
FILES = {
    "{records}/{id}.json": "Slide pages: file, scale and size",
    "{tiles}/{id}.jpg": "Slide pages: overview",
    "{results}/maps/{id}.parquet": "Slide pages: maps",
}
OutcomePages = PageInputs[PredictedSlide, OutcomePredictor]


def outcome_pages(inputs: OutcomePages) -> WritePage:
    """Return the function that renders the page of a slide."""
    return partial(_page, inputs)


def _page(inputs: OutcomePages, slide: str, neighbours: Neighbours) -> tuple[str, dict[str, str]]:
    scored = inputs.scored[slide]
    assert scored is not None, "slides have predictions"
    files = inputs.files.expand(list(FILES), slide)
    state_path, overview_path, map_path = files.values()
    state = read_state_of(inputs.rows[slide], inputs.files.records)
    width, height = _size(state, state_path)
    viewer = inputs.options.get("viewer")
    page = render(
        TEMPLATE,
        scored=scored,
        viewer=viewer(slide) if viewer else None,
        matches=inputs.matches(slide),
        state=state,
        kind=inputs.model.outcome["kind"],
        width=width,
        height=height,
        overview=data_uri(gallery.read_overview(overview_path, width, height), "image/jpeg"),
        layers=_layers(map_path, slide),
        appearance=inputs.appearance(slide),
        neighbours=neighbours,
        sums=(sums := {name: checksum(path) for name, path in files.items()}),
    )
    return page, sums


def _size(state: SlideState, path: Path) -> tuple[int, int]:
    if state.state != "tiled" or not state.source.width or not state.source.height:
        raise UserError(f"{path}: slide {state.slide!r} has no tiles, but it was scored")
    return state.source.width, state.source.height


def _layers(path: Path, slide: str) -> list[dict[str, Any]]:
    """Return the maps of a slide: predictions between the extremes of the slide, and attention."""
    positions = read_map(path, slide, ())
    table, layers = positions.positions, []
    for column, title in (
        ("prediction", "Prediction of each square, from the lowest (dark) to the highest (bright)"),
        ("attention", "Attention, as a share of the largest"),
    ):
        if column not in table:
            continue
        values = table[column].to_numpy(np.float64)
        low = values.min() if column == "prediction" else 0.0
        scaled = (values - low) / ((values.max() - low) or 1)
        image = data_uri(positions.paint(scaled), "image/png")
        layers.append({"title": title, "image": image, "box": positions.picture_box()})
    return layers
