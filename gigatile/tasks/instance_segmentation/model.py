"""A trained model of instances in memory."""

from pathlib import Path

import numpy as np

from gigatile.errors import UserError
from gigatile.instances.detection import Detection
from gigatile.instances.detector import Detector
from gigatile.instances.image_files import ImageError, read_image
from gigatile.model import Model
from gigatile.records.instances import decode_image


class InstanceModel(Model):
    """A trained Mask R-CNN, applied to images.

    Attributes:
        categories: the names of the categories; `Detection.category` is an index.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load `model` (.keras); `described` is its settings.json.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        self._detector = Detector(model, described, {})
        self.categories = self._detector.instances.categories

    def predict(self, image: Path | str | np.ndarray) -> list[Detection]:
        """Return the instances of an image, best first; no file is written.

        Args:
            image: a file (PNG, JPEG, TIFF), or pixels (height, width, 3) uint8 in RGB.

        Raises:
            UserError: the image cannot be used; the message says why.
        """
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                raise UserError(
                    f"image: {image.dtype} of shape {image.shape}; must be uint8 (height, width, 3)"
                )
            return self._detector.detect(image)
        try:
            pixels = decode_image(read_image(Path(image)).data)
        except ImageError as error:
            raise UserError(f"{image}: {error}") from None
        return self._detector.detect(pixels)


def open_model(model: Path, described: Path) -> InstanceModel:
    """Open a model; see `gigatile.model.Model.open`."""
    return InstanceModel(model, described)
