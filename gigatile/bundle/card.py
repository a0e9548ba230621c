"""The model card of a bundle: what the model is for, how good it is, and what it was made from."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gigatile.bundle.cohort import CohortLook
from gigatile.bundle.contents import CARD, METRICS, VERSIONS, BundleManifest
from gigatile.files import read_json, write_text
from gigatile.json_models import read_model
from gigatile.model_files import COHORT, DESCRIBED
from gigatile.report.pages import flat, render

TEMPLATE = Path(__file__).parent / "templates/card.md.j2"
# The fields of a metric with its interval.
INTERVAL = {"value", "low", "high", "no_interval"}
# Metrics of a card; metrics.json has all.
MOST_METRICS = 60


def card_of(
    manifest: BundleManifest,
    described: Mapping[str, Any],
    metrics: Mapping[str, Any],
    look: CohortLook,
    versions: Mapping[str, str],
) -> str:
    """Return the card as Markdown.

    Args:
        manifest: of the bundle.
        described: the model's settings.json.
        metrics: evaluation/metrics.json.
        look: the cohort.
        versions: of the software that trained the model.
    """
    measured = list(intervals_in(metrics))
    return render(
        TEMPLATE,
        manifest=manifest,
        chosen=described["chosen"],
        train=flat(described["train"]),
        sections=flat(manifest.settings),
        measured=measured[:MOST_METRICS],
        more=max(0, len(measured) - MOST_METRICS),
        method=metrics["intervals"],
        look=look,
        versions=versions,
    )


def write_card(folder: Path, manifest: BundleManifest) -> None:
    """Write the card of a bundle from its other files.

    Args:
        folder: of the bundle.
        manifest: of the bundle.

    Raises:
        UserError: a file of the bundle is missing or damaged.
    """
    described, metrics, versions = (
        read_json(folder / name) for name in (DESCRIBED, METRICS, VERSIONS)
    )
    look = read_model(CohortLook, folder / COHORT)
    write_text(folder / CARD, card_of(manifest, described, metrics, look, versions))


def intervals_in(metrics: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the dotted name, the value and the interval of each metric of a metrics.json."""
    if not isinstance(metrics, Mapping):
        return
    if metrics.keys() >= INTERVAL:
        value = "not defined" if metrics["value"] is None else f"{metrics['value']:.3f}"
        if metrics["low"] is None or metrics["high"] is None:
            yield name, value, f"none: {metrics['no_interval']}"
        else:
            yield name, value, f"{metrics['low']:.3f} to {metrics['high']:.3f}"
        return
    for key, inner in metrics.items():
        yield from intervals_in(inner, f"{name}.{key}" if name else str(key))
