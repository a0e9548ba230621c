"""The section with the cohort: labels, sites, scales, faults of tiles, and warnings."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gigatile.report.inputs import CohortRow
from gigatile.report.sites import count_sites, site_notes
from gigatile.report.slides.inputs import mpp_source
from gigatile.report.slides.metrics import SlideRun
from gigatile.report.slides.tile_status import FAULTS
from gigatile.report.task_report import Banner, Content, Section
from gigatile.slides.state import SlideState

TEMPLATE = Path(__file__).parent / "templates/cohort.html.j2"
# Two scanners of one model differ by less than this; 20x and 40x differ by a factor of two.
MPP_TOLERANCE = 0.02


def _content(run: SlideRun) -> Content:
    states = list(run.states.values())
    scales = _scales(states)
    mpp = run.model.tiles.get("mpp")
    values = {
        "labels": run.splits.labels,
        "rows": _label_rows(run.cohort, run.splits.labels),
        "sites": count_sites(run.cohort, run.splits.labels),
        "site_notes": site_notes(run.cohort),
        "mpp": mpp,
        "scales": scales,
        "faults": _fault_rows(states),
    }
    return Content(values, [*_slide_warnings(states), *_scale_warnings(scales, mpp)])


def _label_rows(cohort: Sequence[CohortRow], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Count patients, slides, failures and tiles of each label; the last row is the total."""
    groups = [(label, [s for s in cohort if s.stratum == label]) for label in labels]
    return [
        {
            "label": label,
            "patients": len({s.patient for s in slides}),
            "slides": len(slides),
            "failed": sum(s.state != "tiled" for s in slides),
            "tiles": sum(s.records for s in slides),
        }
        for label, slides in [*groups, (None, list(cohort))]
    ]


def _scales(states: Iterable[SlideState]) -> list[dict[str, Any]]:
    """Count the slides of each scale, finest first; slides of unknown scale last."""
    counts = Counter((s.mpp, s.mpp_from) for s in states if s.state == "tiled")
    order = sorted(counts, key=lambda key: (key[0] is None, key[0] or 0, key[1] or ""))
    return [
        {"mpp": mpp, "source": mpp_source(source), "slides": counts[mpp, source]}
        for mpp, source in order
    ]


def _scale_warnings(scales: Sequence[dict[str, Any]], mpp: float | None) -> list[Banner]:
    """Warn of tiles of different scale."""
    if mpp is not None:
        return []
    known = [row["mpp"] for row in scales if row["mpp"] is not None]
    unknown = sum(row["slides"] for row in scales if row["mpp"] is None)
    if known and max(known) > min(known) * (1 + MPP_TOLERANCE):
        span = f"from {min(known):g} to {max(known):g} µm per pixel"
        also = f", and {unknown} have none" if unknown else ""
        fault = f"The slides' scales differ ({span}{also})"
    elif known and unknown:
        fault = f"{unknown} of the slides have no known scale"
    else:
        return []
    text = (
        f"{fault} and tiles.mpp is null: tiles are extracted at each slide's level 0, so they do "
        "not all show the same area. A model can learn the scale instead of the tissue. Set "
        "tiles.mpp."
    )
    return [Banner("Tiles of different scale.", text)]


def _fault_rows(states: Sequence[SlideState]) -> list[dict[str, Any]]:
    """Count the tiles dropped or marked for each fault, and their slides."""
    rows = []
    for fault, (name, _) in FAULTS.items():
        counts = [(s.tiles.dropped.get(fault, 0), s.tiles.marked.get(fault, 0)) for s in states]
        if slides := sum(any(count) for count in counts):
            dropped, marked = map(sum, zip(*counts, strict=True))
            rows.append({"name": name, "dropped": dropped, "marked": marked, "slides": slides})
    return rows


def _slide_warnings(states: Sequence[SlideState]) -> list[Banner]:
    """Warn of slides that were used but may have a fault."""
    tiled = [state for state in states if state.state == "tiled"]
    illuminations = Counter(state.illumination for state in tiled)
    rarer = min(illuminations, key=illuminations.__getitem__) if len(illuminations) > 1 else None
    warnings = [
        (
            "Scales that contradict each other.",
            "The first source counts. If it is wrong, the tiles have a wrong scale: give the right "
            "one in the column mpp of the sample sheet.",
            [f"{s.slide}: {'; '.join(s.contradictions)}" for s in tiled if s.contradictions],
        ),
        (
            "Two kinds of illumination.",
            "Some slides are bright on dark, as in fluorescence, others dark on bright. A model "
            "can learn the illumination instead of the tissue.",
            [f"{s.slide}: {s.illumination}" for s in tiled if rarer and s.illumination == rarer],
        ),
        (
            "Slides without stain normalisation.",
            "Their tiles have the slide's original colours, the other tiles those of the target.",
            [f"{s.slide}: {s.stain.why_not}" for s in tiled if s.stain and s.stain.why_not],
        ),
    ]
    return [Banner(title, text, slides) for title, text, slides in warnings if slides]


SECTION = Section("cohort", "Cohort", TEMPLATE, _content)
