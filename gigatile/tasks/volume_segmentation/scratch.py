"""Arrays that a thread reuses, because allocating memory is slow."""

import math
import threading

import numpy as np

_memory = threading.local()


def scratch(name: str, shape: tuple[int, ...], kind: np.typing.DTypeLike) -> np.ndarray:
    """Return the array of this name and thread, with undefined content."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    memory: np.ndarray | None = getattr(_memory, name, None)
    if memory is None or len(memory) < size:
        memory = np.empty(size, np.uint8)
        setattr(_memory, name, memory)
    return memory[:size].view(kind).reshape(shape)
