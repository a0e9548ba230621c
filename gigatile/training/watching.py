"""What is seen of a training: its figures for TensorBoard, and where the time of a step goes."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from gigatile.parallel import progress
from gigatile.settings.train import TrainSettings
from gigatile.training.resuming import Position

# Where the time of a step can go, in the order in which it is spent.
SPENT = ("input", "copy", "model", "exchange")
# What reads and decodes tiles does so beside the steps.
BESIDE = ("read", "decode")
# More of a step than this, and it is worth a word on what would help.
HEAVY = 0.2


class Account:
    """Adds up where the time of steps goes, in seconds, by the names of `SPENT` and `BESIDE`.

    A step waits for decoded samples (input), has them copied to the device (copy), and computes
    (model); in the midst of that gradients are reduced over the ranks, and the slowest of them is
    waited for (exchange). Threads that work ahead read records (read) and make samples of them
    (decode).
    """

    def __init__(self) -> None:
        """Begin with nothing spent, and with the first step."""
        self.forget()
        self.begin()

    def forget(self) -> None:
        """Let nothing be spent so far."""
        self._seconds = dict.fromkeys((*SPENT, *BESIDE), 0.0)
        self._steps = 0

    def begin(self) -> None:
        """From now on, time is that of the next step."""
        self._since = time.perf_counter()

    def spend(self, name: str) -> None:
        """Enter the time since the last entry under a name."""
        now = time.perf_counter()
        self._seconds[name] += now - self._since
        self._since = now

    def end(self, exchange: float, read: float, decode: float) -> None:
        """Enter the rest of a step; the exchange was part of what was entered under `model`."""
        self._seconds["model"] -= exchange
        for name, value in (("exchange", exchange), ("read", read), ("decode", decode)):
            self._seconds[name] += value
        self._steps += 1

    def per_step(self) -> np.ndarray:
        """Return the mean seconds of a step, in the order of `SPENT` and `BESIDE`: (6,)."""
        return np.array(list(self._seconds.values())) / max(self._steps, 1)


def bottleneck(seconds: np.ndarray) -> str:
    """Say where the time of a step goes, and what limits the training.

    Args:
        seconds: per step, as `Account.per_step` gives them; the mean of all ranks.
    """
    of = dict(zip((*SPENT, *BESIDE), 1000 * seconds, strict=True))
    whole = sum(of[name] for name in SPENT)
    most = max(SPENT, key=lambda name: of[name])
    # While the model computes nothing is lost; what makes it wait is named even if it is less.
    if most == "model" and max(of["input"], of["exchange"]) > HEAVY * whole:
        most = "input" if of["input"] > of["exchange"] else "exchange"
    slower = "decode" if of["decode"] > of["read"] else "read"
    verdict = {
        "input": {
            "decode": "it waits for samples to be decoded: more train.cores_per_rank would help",
            "read": "it waits for samples to be read: a faster disk under shards/ would help",
        }[slower],
        "copy": "most of it is copying samples to the device",
        "model": "the model's own arithmetic is what limits it",
        "exchange": "ranks wait for gradients, or for the slowest rank: larger batches would help",
    }[most]
    return (
        f"a step takes {whole:.0f} ms: {of['input']:.0f} waiting for input, {of['copy']:.0f} "
        f"copying, {of['model']:.0f} in the model, {of['exchange']:.0f} between ranks; beside it "
        f"{of['read']:.0f} reading and {of['decode']:.0f} decoding. "
        f"{verdict[0].upper()}{verdict[1:]}."
    )


class Events:
    """Figures for TensorBoard, by the number of steps done; the files take more and never less.

    A training that goes on writes again what came after its checkpoint: the same figures.
    """

    def __init__(self, folder: Path) -> None:
        """Begin a file in a folder of its own."""
        self._writer = tf.summary.create_file_writer(str(folder))
        plugin = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
        self._metadata = tf.compat.v1.SummaryMetadata(plugin_data=plugin, data_class=1)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Write figures by their names; `/` groups them."""
        with self._writer.as_default():
            for name, value in figures.items():
                value = tf.constant(value, tf.float32)
                tf.summary.write(name, value, step=step, metadata=self._metadata)
        self._writer.flush()


class Shown:
    """What rank 0 shows of a training: lines of progress, and figures for TensorBoard."""

    def __init__(
        self,
        settings: TrainSettings,
        samples: str,
        measure: str,
        tell: Callable[[str], None],
        events: Path | None,
    ) -> None:
        """Show nothing yet.

        Args:
            settings: of the training.
            samples: what its samples are called, in the plural.
            measure: the name of what is measured beside the loss.
            tell: takes lines.
            events: folder for files of TensorBoard; None: none are written.
        """
        self._settings, self._tell = settings, tell
        self._samples, self._measure = samples, measure
        self._events = Events(events) if events else None

    def begin(self, at: Position, steps: int) -> None:
        """Begin an epoch, or what is left of it."""
        self._first, self._steps = at.step, steps
        self._begun = self._told = self._written = time.monotonic()

    def step(self, at: Position, account: Account) -> None:
        """Show a step, unless the last one shown was a moment ago."""
        now = time.monotonic()
        if now - self._told < progress.WRITE_EVERY:
            return
        self._told = now
        rate = (at.step - self._first) * self._settings.batch_size / (now - self._begun)
        left = (self._steps - at.step) * self._settings.batch_size / rate
        loss, measured, samples = at.sums
        epochs = self._settings.epochs
        shown = (at.epoch + 1, epochs, at.step, self._steps, loss / max(samples, 1), rate, left)
        self._tell(progress.line(*shown, self._samples))
        if self._events and now - self._written >= progress.KEEP_EVERY:
            self._written = now
            spent = zip((*SPENT, *BESIDE), account.per_step(), strict=True)
            self._events.write(
                at.done,
                {"loss": loss / max(samples, 1), self._measure: measured / max(samples, 1)}
                | {f"{self._samples} per second": rate}
                | {f"milliseconds per step/{name}": 1000 * seconds for name, seconds in spent},
            )

    def epoch(self, at: Position, spent: np.ndarray) -> None:
        """Show a whole epoch; `spent` as of an `Account`."""
        number, loss, value = at.history[-1]
        self._tell(
            f"epoch {number:.0f}/{self._settings.epochs}: loss {loss:.4f}, "
            f"{self._measure} {value:.3f}"
        )
        if spent.any():
            self._tell(bottleneck(spent))
        if self._events:
            self._events.write(at.done, {"epoch/loss": loss, f"epoch/{self._measure}": value})
