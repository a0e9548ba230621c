"""The display of a run: a line per stage in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gigatile.command.progress import Failure, Progress, Stage, duration

# Without a terminal, a line about the running stages every so many seconds.
PLAIN_SECONDS = 30.0


def display_for(progress: Progress, console: Console) -> "Display":
    """Return the display that suits the console."""
    return TerminalDisplay(progress, console) if console.is_terminal else Display(progress, console)


class Display:
    """Prints a line when a stage starts and ends, when a job fails, and now and then.

    Args:
        progress: of the run.
        console: where to print.
    """

    def __init__(self, progress: Progress, console: Console) -> None:
        self._progress, self._console = progress, console
        self._printed = time.monotonic()

    def show(self) -> AbstractContextManager[Any]:
        """Return a context in which the display is on."""
        return nullcontext()

    def update(self, event: Mapping[str, Any]) -> None:
        """Process an event of Snakemake."""
        if event["event"] == "interrupted":
            self._print(Text("interrupted; waiting until the running jobs have ended"))
        for change in self._progress.update(event):
            if isinstance(change, Failure):
                self._print(failure_text(change))
            else:
                self._stage_changed(change)
        self._now_and_then()

    def _stage_changed(self, stage: Stage) -> None:
        self._print(Text(stage_line(stage, self._progress)))

    def _now_and_then(self) -> None:
        if time.monotonic() - self._printed < PLAIN_SECONDS:
            return
        for stage in self._progress.stages.values():
            if stage.running:
                self._print(Text(stage_line(stage, self._progress)))

    def _print(self, text: RenderableType) -> None:
        self._printed = time.monotonic()
        self._console.print(text, soft_wrap=True)


class TerminalDisplay(Display):
    """Shows a line with a bar for each stage, and keeps it current."""

    def show(self) -> AbstractContextManager[Any]:
        """Return a context in which the display is on."""
        return Live(
            console=self._console,
            get_renderable=self.render,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _stage_changed(self, stage: Stage) -> None:
        pass

    def _now_and_then(self) -> None:
        pass

    def render(self) -> RenderableType:
        """Return the table of the stages and the time that is left."""
        stages = self._progress.stages.values()
        if not stages:
            return Text("planning …", style="dim")
        table = Table.grid(padding=(0, 2))
        for justify in ("left", "left", "right", "right", "right"):
            table.add_column(justify=justify, no_wrap=True)
        now = time.monotonic()
        for stage in stages:
            style = "" if stage.running else "green" if stage.is_over else "dim"
            table.add_row(
                Text(title(stage), style=style),
                ProgressBar(total=stage.total, completed=stage.done, width=24),
                f"{stage.done:,}/{stage.total:,}",
                rate_text(stage, now),
                Text(time_text(stage, self._progress), style=style),
            )
        if all(stage.is_over for stage in stages):
            return table
        left = duration(self._progress.seconds_left())
        return Group(table, Text(f"about {left} left for the run", style="bold"))


def title(stage: Stage) -> str:
    """Return the name of a stage in words."""
    return stage.name.replace("_", " ")


def rate_text(stage: Stage, now: float) -> str:
    """Return the finished jobs per minute or second; empty for a stage of one job."""
    rate = stage.rate(now)
    if rate is None or stage.total == 1:
        return ""
    return f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min"


def time_text(stage: Stage, progress: Progress) -> str:
    """Return the time that a stage took, or that is left of it."""
    if stage.started is not None and stage.ended is not None:
        return f"took {duration(stage.ended - stage.started)}"
    return f"about {duration(progress.stage_seconds_left(stage))} left" if stage.running else ""


def stage_line(stage: Stage, progress: Progress) -> str:
    """Return a plain line about a stage."""
    parts = [f"{stage.done:,} of {stage.total:,}"]
    if stage.failed:
        parts.append(f"{stage.failed:,} failed")
    parts += filter(None, [rate_text(stage, time.monotonic()), time_text(stage, progress)])
    if not stage.is_over:
        parts.append(f"run: about {duration(progress.seconds_left())} left")
    return f"{title(stage)}: {', '.join(parts)}"


def failure_text(failure: Failure) -> Text:
    """Return a failed job with its reason and its log."""
    name = " ".join([failure.stage.replace("_", " "), *failure.names])
    text = Text(f"failed: {name}: {failure.reason()}", style="red")
    if failure.logs:
        text.append(f"\n  log: {failure.logs[0]}")
    return text
