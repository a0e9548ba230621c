"""The compressed run-length code of COCO's masks.

pycocotools decodes it without checks, and writes outside its memory if it is damaged. So codes from
files are decoded here.
"""

import numpy as np
from pycocotools import mask as coco_mask

# Five bits per character, so a run has at most this many: as many as 32 bits need.
_MAX_CHARACTERS = 7


def decode_runs(counts: bytes) -> np.ndarray:
    """Return the lengths of the runs of a compressed code: (n,) int64, background first.

    The code is that of COCO's maskApi: five bits per character, the sixth is set if more follow;
    from the fourth run on, differences to the run two before.

    Raises:
        ValueError: it is damaged.
    """
    bits = np.frombuffer(counts, np.uint8).astype(np.int64) - 48
    last = bits & 0x20 == 0
    if not len(bits) or (bits < 0).any() or (bits > 63).any() or not last[-1]:
        raise ValueError("the run-length code of its mask is damaged")
    ends = np.flatnonzero(last)
    starts = np.append(0, ends[:-1] + 1)
    lengths = ends - starts + 1
    if lengths.max() > _MAX_CHARACTERS:
        raise ValueError("the run-length code of its mask is damaged")
    shifts = 5 * (np.arange(len(bits)) - np.repeat(starts, lengths))
    runs = np.add.reduceat((bits & 0x1F) << shifts, starts)
    runs -= np.where(bits[ends] & 0x10, 1 << 5 * lengths, 0)
    runs[1::2] = np.cumsum(runs[1::2])
    runs[2::2] = np.cumsum(runs[2::2])
    return runs


def check_runs(runs: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the lengths of the runs of a mask of this size: (n,) int64.

    Args:
        runs: (n,), whole numbers of any type.
        height, width: of the image.

    Raises:
        ValueError: they are negative, or of a mask of another size.
    """
    if (runs < 0).any() or runs.sum() != height * width:
        raise ValueError(f"the runs of its mask do not add up to {height} × {width} pixels")
    return runs.astype(np.int64)


def encode_runs(runs: np.ndarray, height: int, width: int) -> bytes:
    """Return the compressed code of runs, (n,), background first; see `decode_runs`."""
    code = {"size": [height, width], "counts": runs.tolist()}
    return bytes(coco_mask.frPyObjects(code, height, width)["counts"])


def pixels_of_runs(runs: np.ndarray) -> np.ndarray:
    """Return the pixels of a mask: (area,) int64, indices into the image in column-major order.

    Small masks in large images need no array of the size of the image.
    """
    starts, lengths = (np.cumsum(runs) - runs)[1::2], runs[1::2]
    # The k-th pixel of the mask is k pixels behind the start of its run, less those of earlier
    # runs.
    first = starts - (np.cumsum(lengths) - lengths)
    return np.repeat(first, lengths) + np.arange(lengths.sum())


def runs_of_pixels(pixels: np.ndarray, size: int) -> np.ndarray:
    """Return the runs of the mask with these pixels, in ascending order: `pixels_of_runs` inverted.

    Args:
        pixels: (area,) int64.
        size: number of pixels of the image.
    """
    is_first = np.diff(pixels, prepend=-2) > 1
    starts = pixels[is_first]
    ends = pixels[np.append(is_first[1:], True)] + 1 if len(pixels) else starts
    bounds = np.stack([starts, ends], axis=1).reshape(-1)
    runs = np.diff(np.concatenate([[0], bounds, [size]]))
    return runs if runs[-1] else runs[:-1]
