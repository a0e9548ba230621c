"""Monitoring of a training: step times, lines of progress, and scalars for TensorBoard."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from gigatile.parallel import progress
from gigatile.settings.train import TrainSettings
from gigatile.training.pictures import as_png
from gigatile.training.resuming import Position

# The phases of a step, in their order.
PHASES = ("input", "copy", "model", "exchange")
# Work of the input threads, in parallel to the steps.
BACKGROUND = ("read", "decode")
# A phase that takes more than this share of a step is reported as the bottleneck.
BOTTLENECK_SHARE = 0.2


class StepTimer:
    """Measures where the time of training steps goes, in seconds.

    A step waits for decoded samples (input), copies them to the device (copy) and runs the model
    (model). Within that, the ranks sum their gradients and wait for the slowest rank (exchange).
    Threads read records (read) and decode samples (decode) in the background.
    """

    def __init__(self) -> None:
        """Start with the first step."""
        self.reset()
        self.begin()

    def reset(self) -> None:
        """Forget all times."""
        self._seconds = dict.fromkeys((*PHASES, *BACKGROUND), 0.0)
        self._steps = 0

    def begin(self) -> None:
        """Start the clock of a step."""
        self._last = time.perf_counter()

    def end_phase(self, phase: str) -> None:
        """Add the time since the last phase, or since the start of the step."""
        now = time.perf_counter()
        self._seconds[phase] += now - self._last
        self._last = now

    def end_step(self, exchange: float, read: float, decode: float) -> None:
        """Add the other times of a step. The exchange was measured as part of `model`."""
        self._seconds["model"] -= exchange
        for name, value in (("exchange", exchange), ("read", read), ("decode", decode)):
            self._seconds[name] += value
        self._steps += 1

    def per_step(self) -> np.ndarray:
        """Return mean seconds per step in the order of `PHASES` and `BACKGROUND`: (6,)."""
        return np.array(list(self._seconds.values())) / max(self._steps, 1)


def bottleneck(seconds: np.ndarray) -> str:
    """Describe where the time of a step goes, and what would make training faster.

    Args:
        seconds: as `StepTimer.per_step` returns them; the mean over all ranks.
    """
    ms = dict(zip((*PHASES, *BACKGROUND), 1000 * seconds, strict=True))
    step = sum(ms[name] for name in PHASES)
    longest = max(PHASES, key=lambda name: ms[name])
    # The model is never idle without a reason: report what it waits for, even if that is shorter.
    if longest == "model" and max(ms["input"], ms["exchange"]) > BOTTLENECK_SHARE * step:
        longest = "input" if ms["input"] > ms["exchange"] else "exchange"
    slower = "decode" if ms["decode"] > ms["read"] else "read"
    advice = {
        "input": {
            "decode": "Decoding limits the speed: increase train.cores_per_rank.",
            "read": "Reading limits the speed: put shards/ on a faster disk.",
        }[slower],
        "copy": "Copying samples to the device limits the speed.",
        "model": "The model's arithmetic limits the speed.",
        "exchange": "The exchange between ranks limits the speed: use larger batches, or look for "
        "a slow rank.",
    }[longest]
    return (
        f"{step:.0f} ms per step: {ms['input']:.0f} waiting for input, {ms['copy']:.0f} copying, "
        f"{ms['model']:.0f} model, {ms['exchange']:.0f} exchange between ranks; in the background "
        f"{ms['read']:.0f} reading and {ms['decode']:.0f} decoding. {advice}"
    )


def describe_means(means: Mapping[str, float]) -> str:
    """Return means as they are logged; the first of them is the loss."""
    return ", ".join(
        f"{name} {mean:.4f}" if name == "loss" else f"{name} {mean:.3f}"
        for name, mean in means.items()
    )


class EventWriter:
    """Writes scalars and pictures for TensorBoard, by the number of steps.

    A training that resumes from a checkpoint writes the scalars after it again, with equal values.
    """

    def __init__(self, folder: Path) -> None:
        """Create a new event file in a folder."""
        self._writer = tf.summary.create_file_writer(str(folder))
        self._scalars, self._images = _metadata("scalars", 1), _metadata("images", 3)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars by name; `/` in a name groups them."""
        with self._writer.as_default():
            for name, value in scalars.items():
                value = tf.constant(value, tf.float32)
                tf.summary.write(name, value, step=step, metadata=self._scalars)
        self._writer.flush()

    def write_pictures(self, step: int, pictures: Mapping[str, np.ndarray]) -> None:
        """Write pictures, (height, width, 3) uint8, by name."""
        with self._writer.as_default():
            for name, picture in pictures.items():
                height, width, _ = picture.shape
                content = tf.constant([str(width), str(height), as_png(picture)])
                tf.summary.write(name, content, step=step, metadata=self._images)
        self._writer.flush()


def _metadata(plugin: str, data_class: int) -> tf.compat.v1.SummaryMetadata:
    """Return how TensorBoard shows a tensor; data classes are 1, scalar, and 3, blobs."""
    data = tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin)
    return tf.compat.v1.SummaryMetadata(plugin_data=data, data_class=data_class)


class ProgressReporter:
    """Logs lines of progress and writes scalars for TensorBoard, on rank 0."""

    def __init__(
        self,
        settings: TrainSettings,
        samples: str,
        metrics: Sequence[str],
        log: Callable[[str], None],
        events: Path | None,
    ) -> None:
        """Create the event file. Nothing is logged yet.

        Args:
            settings: of the training.
            samples: plural name of the samples.
            metrics: names of the metrics.
            log: takes lines.
            events: folder for TensorBoard; None: none.
        """
        self._settings, self._log = settings, log
        self._samples, self._names = samples, ("loss", *metrics)
        self._events = EventWriter(events) if events else None

    def begin_epoch(self, position: Position, steps: int) -> None:
        """Start an epoch, or the rest of it after `position`."""
        self._first, self._steps = position.step, steps
        self._start = self._logged = self._written = time.monotonic()

    def end_step(self, position: Position, timer: StepTimer, scalars: Mapping[str, float]) -> None:
        """Report a step, but at most one per second; `scalars` are for TensorBoard only."""
        now = time.monotonic()
        if now - self._logged < progress.WRITE_EVERY:
            return
        self._logged = now
        rate = (position.step - self._first) * self._settings.batch_size / (now - self._start)
        left = (self._steps - position.step) * self._settings.batch_size / rate
        means = position.means(self._names)
        epoch, epochs = position.epoch + 1, self._settings.epochs
        shown = (epoch, epochs, position.step, self._steps, means["loss"], rate, left)
        self._log(progress.format_progress(*shown, self._samples))
        if self._events and now - self._written >= progress.KEEP_EVERY:
            self._written = now
            times = zip((*PHASES, *BACKGROUND), timer.per_step(), strict=True)
            self._events.write(
                position.done,
                means
                | {**scalars, f"{self._samples} per second": rate}
                | {f"milliseconds per step/{name}": 1000 * seconds for name, seconds in times},
            )

    def report_validation(self, position: Position, means: Mapping[str, float], count: int) -> None:
        """Report a validation within an epoch: the means of so many samples."""
        self._log(
            f"epoch {position.epoch + 1}/{self._settings.epochs}, step {position.step} of "
            f"{self._steps}: validation {describe_means(means)} on {count} {self._samples}"
        )
        if self._events:
            scalars = {f"validation/{name}": value for name, value in means.items()}
            self._events.write(position.done, scalars)

    def end_epoch(self, position: Position, seconds: np.ndarray) -> None:
        """Report an epoch; `seconds` as `StepTimer.per_step` returns them."""
        number, *values = position.history[-1]
        means = dict(zip(self._names, values, strict=True))
        self._log(f"epoch {number:.0f}/{self._settings.epochs}: {describe_means(means)}")
        if seconds.any():
            self._log(bottleneck(seconds))
        if self._events:
            scalars = {f"epoch/{name}": value for name, value in means.items()}
            self._events.write(position.done, scalars)
