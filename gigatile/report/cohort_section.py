"""The cohort: labels, sites, scales, faults, splits, and what the manifest states about it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from gigatile.cohort.splits import SplitProof
from gigatile.records.manifest import Manifest
from gigatile.report.fates import FAULTS
from gigatile.report.inputs import CohortSlide, ScoredSlide
from gigatile.report.leakage import other_records
from gigatile.settings.split import SPLITS
from gigatile.slides.state import SlideState

# Two scanners of one model differ by less than this; 20x and 40x differ by a factor of two.
MPP_TOLERANCE = 0.02


def label_rows(cohort: Sequence[CohortSlide], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Count patients, slides, failures and tiles for each label; the last row is the whole."""
    groups = [(label, [s for s in cohort if s.label == label]) for label in labels]
    return [
        {
            "label": label,
            "patients": len({s.patient for s in slides}),
            "slides": len(slides),
            "failed": sum(s.state != "tiled" for s in slides),
            "tiles": sum(s.tiles for s in slides),
        }
        for label, slides in [*groups, (None, list(cohort))]
    ]


def site_rows(cohort: Sequence[CohortSlide], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Count each site's slides by label and by split; no rows where the sheet names no site."""
    sites: dict[str, list[CohortSlide]] = defaultdict(list)
    for one in cohort:
        sites[one.site].append(one)
    if not any(sites):
        return []
    return [
        {
            "site": site or "not given",
            "patients": len({s.patient for s in slides}),
            "slides": len(slides),
            "by_label": [sum(s.label == label for s in slides) for label in labels],
            "by_split": [sum(s.split == split for s in slides) for split in SPLITS],
        }
        for site, slides in sorted(sites.items())
    ]


def mpp_rows(states: Iterable[SlideState]) -> list[dict[str, Any]]:
    """Count the slides of each scale, finest first; slides of unknown scale last."""
    found = Counter((s.mpp, s.mpp_from) for s in states if s.state == "tiled")
    order = sorted(found, key=lambda key: (key[0] is None, key[0] or 0, key[1] or ""))
    return [{"mpp": mpp, "source": source, "slides": found[mpp, source]} for mpp, source in order]


def mpp_warning(rows: Sequence[dict[str, Any]], wanted: float | None) -> str | None:
    """Warn where tiles of different scale were treated as alike; None where there is no cause."""
    if wanted is not None:
        return None
    known = [row["mpp"] for row in rows if row["mpp"] is not None]
    unknown = sum(row["slides"] for row in rows if row["mpp"] is None)
    differ = bool(known) and max(known) > min(known) * (1 + MPP_TOLERANCE)
    if differ:
        span = f"from {min(known):g} to {max(known):g} µm per pixel"
        also = f", and {unknown} tell none at all" if unknown else ""
        found = f"The slides' scales differ ({span}{also})"
    elif known and unknown:
        found = f"{unknown} of the slides tell no scale"
    else:
        return None
    return (
        f"{found} and tiles.mpp is null: each slide was cut at its own level 0, so the tiles do "
        "not all show the same area. A model can learn the scale instead of the "
        "tissue. Set tiles.mpp."
    )


def fault_rows(states: Sequence[SlideState]) -> list[dict[str, Any]]:
    """Count the tiles that were dropped or marked for each fault, and their slides."""
    rows = []
    for fault, (name, _) in FAULTS.items():
        dropped = [state.tiles.dropped.get(fault, 0) for state in states]
        marked = [state.tiles.marked.get(fault, 0) for state in states]
        slides = sum(bool(one or other) for one, other in zip(dropped, marked, strict=True))
        if slides:
            rows.append(
                {"name": name, "dropped": sum(dropped), "marked": sum(marked), "slides": slides}
            )
    return rows


def slide_warnings(states: Sequence[SlideState]) -> list[dict[str, Any]]:
    """Warn of slides that were cut and yet need a look, each with what was found."""
    tiled = [state for state in states if state.state == "tiled"]
    lights = Counter(state.light for state in tiled)
    rarer = min(lights, key=lights.__getitem__) if len(lights) > 1 else None
    found = [
        (
            "Scales that contradict each other.",
            "The first one told counts. If it is wrong, a slide was cut at a wrong scale: give the "
            "right one in the sheet's column mpp.",
            [f"{s.slide}: {'; '.join(s.contradictions)}" for s in tiled if s.contradictions],
        ),
        (
            "Two kinds of light.",
            "Some slides are bright on dark, as in fluorescence, others dark on bright. A model "
            "can learn the light instead of the tissue.",
            [f"{s.slide}: {s.light}" for s in tiled if rarer and s.light == rarer],
        ),
        (
            "Slides whose stain was not normalised.",
            "Their tiles have the slide's own colours, those of the other slides the target's.",
            [f"{s.slide}: {s.stain.why_not}" for s in tiled if s.stain and s.stain.why_not],
        ),
    ]
    return [
        {"title": title, "text": text, "slides": slides} for title, text, slides in found if slides
    ]


def split_rows(splits: SplitProof) -> list[dict[str, Any]]:
    """Return the splits in their order, each with its labels in theirs."""
    return [
        {"split": name, "whole": splits.splits[name], "labels": splits.splits[name].by_label}
        for name in SPLITS
        if name in splits.splits
    ]


def left_out(
    cohort: Sequence[CohortSlide], scored: Sequence[ScoredSlide]
) -> list[tuple[CohortSlide, str]]:
    """Return the slides that no figure counts, each with the reason."""
    counted = {s.slide for s in scored}
    found = []
    for one in cohort:
        if one.state != "tiled" or not one.tiles:
            found.append((one, one.reason or "it gave no tiles; no reason was recorded"))
        elif one.split == "test" and one.slide not in counted:
            found.append(
                (one, "it is a test slide with tiles, yet the evaluation has no scores of it")
            )
    return found


def other_shards(manifest: Manifest, cohort: Sequence[CohortSlide]) -> list[str]:
    """Return where the manifest contradicts the table: numbers of tiles, and records."""
    found = []
    for name in ("train", "valid"):
        counted: dict[str, int] = {}
        for one in cohort:
            if one.split == name and one.tiles:
                counted[one.label] = counted.get(one.label, 0) + one.tiles
        stated = manifest.splits[name].by_label if name in manifest.splits else {}
        found += [
            f"{name}, {label}: {stated.get(label, 0)} tiles in the shards, "
            f"{counted.get(label, 0)} on the slides"
            for label in sorted({*stated, *counted})
            if stated.get(label, 0) != counted.get(label, 0)
        ]
    found += [f"{name} is in the shards" for name in manifest.splits if name == "test"]
    tiled = [one for one in cohort if one.state == "tiled"]
    return [*found, *other_records(manifest.inputs, tiled, "slide", "tiles")]
