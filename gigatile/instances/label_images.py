"""Label images: each pixel has the number of its instance, 0 for background."""

from pathlib import Path

import numpy as np
import tifffile
from PIL import Image
from scipy import ndimage

from gigatile.instances.annotations import Instances, empty_instances, stack_instances
from gigatile.instances.image_files import ImageError


def read_label_image(path: Path) -> np.ndarray:
    """Return a label image (.png, .tif, .tiff or .npy): (rows, columns), integers from 0.

    Raises:
        ImageError: the file is damaged, or has channels or values that are not whole numbers.
    """
    try:
        if path.suffix.lower() == ".npy":
            labels = np.load(path, allow_pickle=False)
        elif path.suffix.lower() in (".tif", ".tiff"):
            labels = tifffile.imread(path)
        else:
            with Image.open(path) as image:
                labels = np.asarray(image.convert("L") if image.mode == "1" else image)
    except OSError as error:
        if error.errno is not None:
            raise
        raise ImageError(
            f"label image {path.name}: damaged: {' '.join(str(error).split())}"
        ) from None
    except Exception as error:  # tifffile raises many kinds
        raise ImageError(
            f"label image {path.name}: cannot be read: {type(error).__name__}"
        ) from None
    labels = np.squeeze(labels)
    if labels.ndim != 2 or labels.dtype.kind not in "iub":
        raise ImageError(
            f"label image {path.name}: {labels.dtype} of shape {labels.shape}; must be one channel "
            "of whole numbers"
        )
    if labels.size and labels.min() < 0:
        raise ImageError(
            f"label image {path.name}: has the label {labels.min()}; must be 0 or more"
        )
    return labels


def instances_of_labels(labels: np.ndarray) -> Instances:
    """Return the instances of a label image, all of the first category.

    Pixels with the same number are one instance, also if they are not connected.
    """
    present, numbers = np.unique(labels, return_inverse=True)
    dense = numbers.reshape(labels.shape) + (present[0] != 0)
    slices = ndimage.find_objects(dense.astype(np.int64))
    masks = [
        (dense[part] == number, (part[0].start, part[1].start))
        for number, part in enumerate(slices, 1)
        if part is not None
    ]
    return stack_instances(masks, [1] * len(masks)) if masks else empty_instances()
