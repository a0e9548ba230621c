"""The section with the agreement of the maps with those of a tile classifier of another run."""

from pathlib import Path
from typing import Any

from gigatile.report.slides.inputs import read_compared_scores
from gigatile.report.slides.metrics import SlideRun
from gigatile.report.task_report import Content, Section
from gigatile.report.whole_slides.comparison import agreement, matched
from gigatile.report.whole_slides.maps import read_map

TEMPLATE = Path(__file__).parent / "templates/agreement.html.j2"


def _content(run: SlideRun) -> Content | None:
    if run.compare is None:
        return None
    classes, pairs, missing = run.metrics.classes, {}, []
    for slide in run.scored:
        other = read_compared_scores(run.compare, slide.id, classes)
        if other is None:
            missing.append(slide.id)
            continue
        path = run.files["evaluation_dir"] / f"maps/{slide.id}.parquet"
        source = f"{run.compare}: slide {slide.id!r}"
        positions = read_map(path, slide.id, classes)
        pairs[slide.id] = matched(positions, *other, classes, source)
    rows: list[dict[str, Any]] = []
    if pairs:
        for number, name in enumerate(classes):
            rows.append({"class": name, "all": agreement([*pairs.values()], number)})
    values = {"run": run.compare.name, "rows": rows, "slides": len(pairs), "missing": missing}
    return Content(values)


SECTION = Section("agreement", "Agreement with another run", TEMPLATE, _content, "Agreement")
