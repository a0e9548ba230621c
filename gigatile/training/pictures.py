"""Pictures of a validation for TensorBoard: the confusion matrix, and the worst samples."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

# Pixels of the margin around a sample, and of the lines of text below it.
GAP, LINE = 4, 14
COLUMNS = 4


@dataclass(frozen=True)
class Sample:
    """A sample of a validation.

    Attributes:
        loss: of the sample.
        picture: (y, x, 3) uint8.
        caption: lines of text.
    """

    loss: float
    picture: np.ndarray
    caption: Sequence[str]


class Worst:
    """Keeps the samples with the largest losses; of equals, the first."""

    def __init__(self, count: int = 16) -> None:
        self._count = count
        self.samples: list[Sample] = []

    def would_keep(self, loss: float) -> bool:
        """Return whether a sample with this loss is among the worst so far."""
        return len(self.samples) < self._count or loss > self.samples[-1].loss

    def add(self, sample: Sample) -> None:
        """Add a sample; it stays if it is among the worst."""
        self.samples.append(sample)
        self.samples.sort(key=lambda each: -each.loss)  # a stable sort
        del self.samples[self._count :]


def mosaic(samples: Sequence[Sample]) -> np.ndarray:
    """Return samples of equal size with their captions, in rows: (height, width, 3) uint8."""
    height, width, _ = samples[0].picture.shape
    lines = max(len(sample.caption) for sample in samples)
    # Room for a caption, also below small tiles.
    width, height = max(width, 120) + 2 * GAP, height + lines * LINE + 2 * GAP
    columns = min(COLUMNS, len(samples))
    size = (columns * width, -(-len(samples) // columns) * height)
    canvas = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(canvas)
    for number, sample in enumerate(samples):
        row, column = divmod(number, columns)
        left, top = column * width + GAP, row * height + GAP
        canvas.paste(Image.fromarray(sample.picture), (left, top))
        for line, text in enumerate(sample.caption):
            draw.text((left, top + sample.picture.shape[0] + line * LINE), text, "black")
    return np.asarray(canvas)


def draw_confusion(counts: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """Return a picture of a confusion matrix: (height, width, 3) uint8.

    Args:
        counts: (classes, classes) int, rows: labels, columns: predictions.
        classes: their names.
    """
    side, left = 72, max(72, 7 * max(map(len, classes)) + 2 * GAP)
    top = 2 * LINE + GAP
    canvas = Image.new("RGB", (left + side * len(classes), top + side * len(classes)), "white")
    draw = ImageDraw.Draw(canvas)
    draw.text((GAP, GAP), "label \\ predicted", "black")
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    for number, name in enumerate(classes):
        draw.text((left + number * side + GAP, LINE), name[: side // 7], "black")
        draw.text((GAP, top + number * side + side // 2 - LINE // 2), name, "black")
    for (row, column), count in np.ndenumerate(counts):
        share = float(shares[row, column])
        x, y = left + column * side, top + row * side
        # The darker, the larger the share of the label.
        colour = tuple(round(255 - share * (255 - dark)) for dark in (8, 48, 107))
        draw.rectangle((x, y, x + side - 2, y + side - 2), colour, "grey")
        ink = "white" if share > 0.5 else "black"
        draw.text((x + side // 2, y + side // 2), f"{count:,}", ink, anchor="mm")
    return np.asarray(canvas)


def as_png(picture: np.ndarray) -> bytes:
    """Return a picture, (height, width, 3) uint8, as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


def class_figures(counts: np.ndarray, classes: Sequence[str]) -> dict[str, float]:
    """Return recall and precision of each class; of a class without samples, none.

    Args:
        counts: (classes, classes) int, rows: labels, columns: predictions.
        classes: their names.
    """
    figures = {}
    for number, name in enumerate(classes):
        for title, total in (
            ("recall", counts[number].sum()),
            ("precision", counts[:, number].sum()),
        ):
            if total:
                figures[f"{title}/{name}"] = float(counts[number, number] / total)
    return figures
