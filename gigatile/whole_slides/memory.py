"""The memory that a window needs, estimated from the layers of the encoder."""

import contextlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.whole_slides.receptive_field import Fields
from gigatile.whole_slides.windows import window_side

# Gradients and temporary arrays need half as much again as the activations; see docs/speed.md.
FACTOR = 1.5


def activation_bytes(encoder: keras.Model, side: int) -> int:
    """Return the bytes of the outputs of all layers for a window of side² pixels."""
    total = 0

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal total
        outputs = layer(*args, **kwargs)
        if isinstance(layer, keras.Model):
            tensors = keras.tree.flatten((args, kwargs))
            follow(layer, [t for t in tensors if isinstance(t, keras.KerasTensor)])
        else:
            for tensor in keras.tree.flatten(outputs):
                total += int(np.prod(tensor.shape)) * np.dtype(tensor.dtype).itemsize
        return outputs

    def follow(model: keras.Model, tensors: list[Any]) -> None:
        fed = [keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype) for tensor in tensors]
        keras.models.clone_model(
            model,
            input_tensors=keras.tree.pack_sequence_as(model.input, fed),
            clone_function=lambda layer: layer,
            call_function=call,
        )

    (pixels,) = keras.tree.flatten(encoder.input)
    follow(encoder, [keras.Input(batch_shape=(1, side, side, pixels.shape[-1]))])
    return total


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return how much memory a process can still get; None if it is not known.

    This is the smallest of the machine's available memory and of what is left in the control group
    of the process and in the groups around it: SLURM sets the limit of a job on an outer group.
    File cache does not count as used, as the kernel frees it (Linux, admin-guide/cgroup-v2).

    Args:
        root: the folder with `proc` and `sys`.
    """
    left = []
    with contextlib.suppress(OSError):  # not Linux
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                left.append(int(line.split()[1]) * 1024)
    groups = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        name = (root / "proc/self/cgroup").read_text().strip().split("::")[-1]
        for group in [groups / name.lstrip("/"), *(groups / name.lstrip("/")).parents]:
            if group.is_relative_to(groups) and (rest := _left_in(group)) is not None:
                left.append(rest)
    return max(0, min(left)) if left else None


def _left_in(group: Path) -> int | None:
    """Return the bytes that are left in a control group; None without a limit."""
    try:
        limit, used = (
            (group / f"memory.{name}").read_text().strip() for name in ("max", "current")
        )
        statistics = dict(
            line.split(maxsplit=1) for line in (group / "memory.stat").read_text().splitlines()
        )
    except OSError:  # the outermost group has no limit
        return None
    if limit == "max":
        return None
    return int(limit) - int(used) + int(statistics.get("file", 0))


def largest_side(fields: Fields, side: int) -> int:
    """Return the pixels along an axis that a window of `side` pixels can read.

    They are more than `side` if the receptive field of one output is larger, and as the start of a
    window is a multiple of the stride.
    """
    outputs = window_side(fields, side)
    return max(field.last - field.first + 1 + (outputs + 1) * field.stride - 2 for field in fields)


def check_window(
    encoder: keras.Model, fields: Fields, side: int, processes: int, available: int | None = None
) -> None:
    """Refuse a window that does not fit into memory. On a GPU nothing is checked.

    Args:
        encoder: runs on the window.
        fields: its receptive field.
        side: of the window in pixels.
        processes: that share the memory of this machine.
        available: bytes for all of them; None: what is available.

    Raises:
        UserError: says which side would fit.
    """
    if tf.config.list_physical_devices("GPU"):
        return
    available = available_bytes() if available is None else available
    # In proportion to the pixels. A small window would be mostly its margin.
    sample = min(largest_side(fields, side), 512)
    per_pixel = FACTOR * activation_bytes(encoder, sample) / sample**2
    needed = per_pixel * largest_side(fields, side) ** 2
    if available is None or needed * processes <= available:
        return
    pixels = int((available / processes / per_pixel) ** 0.5)
    sides = range(side // 64 * 64, 0, -64)
    fits = next((fits for fits in sides if largest_side(fields, fits) <= pixels), None)
    hint = f"set it to {fits} or less" if fits else "use fewer ranks per node or a smaller model"
    raise UserError(
        f"whole_slides.window: a window of {side} px needs about {needed / 1e9:.1f} GB for "
        f"{encoder.name}, but {available / 1e9:.1f} GB are available for {processes} process(es); "
        f"{hint}"
    )
