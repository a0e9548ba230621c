"""The sections with the baselines, and with the embeddings in two dimensions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.evaluation.baselines import Baselines, Component
from gigatile.json_models import read_model
from gigatile.report.task_report import Content, Section

TEMPLATES = Path(__file__).parent / "templates"
FILE = "baselines.json"
# Side of a plot in the units of its SVG.
SIDE = 200
# Sites with a plot: those with the most slides.
MOST_SITES = 8


@dataclass(frozen=True)
class Panel:
    """A plot in which the slides of a label or a site are marked.

    Attributes:
        title: the label or site.
        marked, others: the slides, each with x, y and its id; those of test are marked first.
    """

    title: str
    marked: Sequence[tuple[str, str, str]]
    others: Sequence[tuple[str, str, str]]


def _read(run: Any) -> Baselines:
    path = run.files["evaluation_dir"] / FILE
    baselines = read_model(Baselines, path)
    if baselines.classes != run.model.classes:
        raise UserError(
            f"{path}: classes are {baselines.classes}, the model's are {run.model.classes}"
        )
    run.ledger.add(f"evaluation/{FILE}", path, "Baselines; Embeddings")
    run.ledger.check(f"evaluation/{FILE}", baselines.inputs, path)
    return baselines


def _baselines(run: Any) -> Content:
    baselines = _read(run)
    return Content({"figures": baselines.figures, "intervals": baselines.intervals})


def _components(run: Any) -> Content:
    baselines = read_model(Baselines, run.files["evaluation_dir"] / FILE)
    sites = {row.id: row.site for row in run.cohort if row.site}
    by_site: dict[str, int] = {}
    for site in sites.values():
        by_site[site] = by_site.get(site, 0) + 1
    largest = sorted(by_site, key=lambda site: (-by_site[site], site))[:MOST_SITES]
    labels = {each.slide: each.label for each in baselines.components}
    return Content(
        {
            "labels": _panels(baselines.components, labels, baselines.classes),
            "sites": _panels(baselines.components, sites, sorted(largest)),
            "side": SIDE,
        }
    )


def _panels(
    components: Sequence[Component], groups: Mapping[str, str], names: Sequence[str]
) -> list[Panel]:
    points = _points(components)
    return [
        Panel(
            name,
            [point for point in points if groups.get(point[2]) == name],
            [point for point in points if groups.get(point[2]) != name],
        )
        for name in names
    ]


def _points(components: Sequence[Component]) -> list[tuple[str, str, str]]:
    """Return x, y, both from 0 to `SIDE`, and the id of each slide; y is down."""
    if not components:
        return []
    axes = list(zip(*(each.values for each in components), strict=True))
    scaled = []
    for axis in axes:
        low, high = min(axis), max(axis)
        width = high - low or 1
        scaled.append([SIDE * (value - low) / width for value in axis])
    return [
        (f"{x:.4g}", f"{SIDE - y:.4g}", each.slide)
        for x, y, each in zip(*scaled, components, strict=True)
    ]


BASELINES_SECTION = Section("baselines", "Baselines", TEMPLATES / "baselines.html.j2", _baselines)
COMPONENTS_SECTION = Section(
    "embeddings",
    "Embeddings in two dimensions",
    TEMPLATES / "components.html.j2",
    _components,
    "Embeddings",
)
