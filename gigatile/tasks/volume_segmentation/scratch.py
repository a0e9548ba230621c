"""Arrays that a thread uses again and again: new memory is slow."""

import math
import threading

import numpy as np

_MINE = threading.local()


def scratch(name: str, shape: tuple[int, ...], kind: np.typing.DTypeLike) -> np.ndarray:
    """Return an array of this thread, its content by chance."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    memory: np.ndarray | None = getattr(_MINE, name, None)
    if memory is None or len(memory) < size:
        memory = np.empty(size, np.uint8)
        setattr(_MINE, name, memory)
    return memory[:size].view(kind).reshape(shape)
