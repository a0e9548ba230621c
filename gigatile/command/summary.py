"""The end of a run: what ran, what was left out, the result, the report, what to do next."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gigatile.command.progress import duration
from gigatile.command.snakemake import new_data
from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.settings.whole import Settings
from gigatile.tables import read_table
from gigatile.tasks import find_task


def summary_lines(
    settings: Settings,
    counts: Mapping[str, int],
    seconds: float,
    log: Path,
    configuration: Path,
    new: Path | None = None,
    bundle: Path | None = None,
) -> list[str]:
    """Return the lines; paths are absolute.

    Args:
        settings: of the run.
        counts: finished jobs by stage.
        seconds: duration of the run.
        log: file with the output of Snakemake.
        configuration: file of the run.
        new: the sheet of the slides or cases that were predicted; None: the run ends with an
            evaluation.
        bundle: folder of the bundle, if the run ends with one.
    """
    run = Path("results", settings.run)
    task = find_task(settings.task)
    ran = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())
    table, unit, page = run / task.table, task.unit, run / "report/index.html"
    if new is not None:
        predicted = new_data(settings, new)
        folder = run / "predictions"
        table, unit, page = folder / predicted.table, predicted.unit, folder / predicted.page
    name = configuration.parent if configuration.name == "config.yaml" else configuration
    rows = {
        "ran": f"{ran} in {duration(seconds)}" if ran else "nothing: all results are up to date",
        "left out": left_out(table, unit),
        "result": result_line(run, task.headline)
        if new is None
        else str((page.parent.parent).absolute()),
        "report": str(page.absolute()),
        "log": str(log),
        "next": f"gigatile report {name} opens it; gigatile verify {name} checks every file"
        if new is None
        else f"open the report in a browser; gigatile verify {name} {new} checks every file",
    }
    if bundle is not None:
        del rows["report"]
        rows["next"] = f"gigatile predict {bundle} SHEET predicts with it alone"
    return [f"{key:9} {value}" for key, value in rows.items()]


def left_out(table: Path, unit: str) -> str:
    """Return how many slides or cases were left out, and the most frequent reasons."""
    try:
        rows = read_table(table)
    except UserError:
        return "unknown"
    reasons = Counter(row["reason"] for row in rows if row.get("reason"))
    total = f"{len(rows):,} {unit}{'' if len(rows) == 1 else 's'}"
    if not reasons:
        return f"none of {total}"
    examples = "; ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common(2))
    more = "; …" if len(reasons) > 2 else ""
    return f"{reasons.total():,} of {total}: {examples}{more}"


def result_line(run: Path, headline: tuple[str, str] | None) -> str:
    """Return the main figure of a run with its interval.

    Args:
        run: its folder.
        headline: the name of the figure, and where it is in evaluation/metrics.json.
    """
    if headline is None:
        return str(run / "evaluation")
    name, path = headline
    try:
        interval: Any = read_json(run / "evaluation" / "metrics.json")
        for key in path.split("."):
            interval = interval[key]
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return "no evaluation"
    if interval["value"] is None:
        return f"{name}: not defined ({interval['no_interval']})"
    if interval["low"] is None:
        return f"{name} {interval['value']:.3f} (no interval: {interval['no_interval']})"
    return (
        f"{name} {interval['value']:.3f} (95 % CI {interval['low']:.3f} to {interval['high']:.3f})"
    )
