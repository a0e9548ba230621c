"""Random changes of tiles: scale, stain, colour, blur, noise, compression and cutout.

What happens to a sample follows from its seed, that is from seed, epoch and record. So it depends
neither on the number of ranks nor on where a training was interrupted.
"""

import math
from collections.abc import Callable, Sequence

import cv2
import numpy as np

from gigatile.records.shuffle import key64, normal_numbers, random64, uniform_of
from gigatile.records.tile import decode_jpeg, encode_jpeg
from gigatile.settings.augmentation import AugmentationSettings

# Many threads decode at the same time; OpenCV needs no further ones.
cv2.setNumThreads(1)

# The optical densities of haematoxylin, eosin and the residual (DAB) in red, green and blue, each
# of unit length (Ruifrok and Johnston 2001), and their inverse.
STAINS = np.array([[0.650, 0.704, 0.286], [0.072, 0.990, 0.105], [0.268, 0.570, 0.776]])
STAINS /= np.linalg.norm(STAINS, axis=1, keepdims=True)
UNMIXING = np.linalg.inv(STAINS)
# Natural logarithm of an optical density of 1.
_LN10 = math.log(10)
# By grey level: optical density. A level of 0 counts as half a level.
_DENSITY = (-np.log10(np.maximum(np.arange(256), 0.5) / 255)).astype(np.float32)
# Luminance of red, green and blue (ITU-R BT.601), and the axes of the chrominance (YIQ).
_LUMINANCE = np.array([0.299, 0.587, 0.114])
_YIQ = np.array([_LUMINANCE, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
# Blur below this standard deviation changes nothing that can be seen.
_LEAST_BLUR = 0.1
# All tiles take their noise from the same numbers, from a random offset up to this one.
_MAX_OFFSET = 1 << 16
# From the seed of a sample to random numbers that nothing else uses.
_KEY = key64("augmentation")


class Draws:
    """Random numbers of a sample, one after the other."""

    def __init__(self, seed: int) -> None:
        numbers = random64(_KEY ^ seed, np.arange(32))
        self._numbers = iter(uniform_of(numbers))

    def between(self, low: float, high: float) -> float:
        """Return a number, uniform in [low, high)."""
        return low + (high - low) * float(next(self._numbers))

    def around(self, middle: float, change: float) -> float:
        """Return a number that differs from `middle` by at most `change`."""
        return self.between(middle - change, middle + change)


Change = Callable[[np.ndarray, AugmentationSettings, Draws], np.ndarray]


def change_scale(image: np.ndarray, settings: AugmentationSettings, draws: Draws) -> np.ndarray:
    """Enlarge or shrink the content about the centre; beyond the border it is mirrored."""
    factor = draws.around(1, settings.scale)
    height, width = image.shape[:2]
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), 0, factor)
    return cv2.warpAffine(
        image, matrix, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101
    )


def change_stain(image: np.ndarray, settings: AugmentationSettings, draws: Draws) -> np.ndarray:
    """Change the amount of each stain: a s + b, with random a and b.

    HED-light and HED-strong of Tellez et al. 2019, https://arxiv.org/abs/1902.06543, section 3.2.
    Optical densities are linear in the stains, so that a single matrix does it.
    """
    factors = np.array([draws.around(1, settings.stain) for _ in STAINS])
    shifts = np.array([draws.around(0, settings.stain) for _ in STAINS])
    matrix = (UNMIXING * factors) @ STAINS
    # From optical density to the logarithm of the grey level.
    of_log = np.column_stack([-_LN10 * matrix.T, math.log(255) - _LN10 * (shifts @ STAINS)])
    log = cv2.transform(cv2.LUT(image, _DENSITY), of_log.astype(np.float32))
    return cv2.convertScaleAbs(cv2.exp(log))


def change_colour(image: np.ndarray, settings: AugmentationSettings, draws: Draws) -> np.ndarray:
    """Change brightness, contrast, saturation and hue, in this order.

    Brightness, contrast and saturation are those of torchvision's ColorJitter, except that values
    are clipped at the end only; hue is a rotation in YIQ. All are linear: a single matrix.
    """
    brightness = draws.around(1, settings.brightness)
    contrast = draws.around(1, settings.contrast)
    saturation = draws.around(1, settings.saturation)
    angle = math.radians(draws.around(0, settings.hue))
    grey = float(np.array(cv2.mean(image)[:3]) @ _LUMINANCE) * brightness
    cosine, sine = math.cos(angle), math.sin(angle)
    turn = np.array([[1, 0, 0], [0, cosine, -sine], [0, sine, cosine]])
    rotated = np.linalg.inv(_YIQ) @ turn @ _YIQ
    greyed = saturation * np.eye(3) + (1 - saturation) * np.outer(np.ones(3), _LUMINANCE)
    matrix = rotated @ greyed * contrast * brightness
    # Saturation and hue keep grey as it is.
    offset = np.full(3, (1 - contrast) * grey)
    return cv2.transform(image, np.column_stack([matrix, offset]))


def blur(image: np.ndarray, settings: AugmentationSettings, draws: Draws) -> np.ndarray:
    """Blur with a Gaussian."""
    deviation = draws.between(0, settings.blur)
    if deviation < _LEAST_BLUR:
        return image
    return cv2.GaussianBlur(image, (0, 0), deviation, borderType=cv2.BORDER_REFLECT_101)


def add_noise(image: np.ndarray, settings: AugmentationSettings, draws: Draws) -> np.ndarray:
    """Add normal noise to each value."""
    deviation = draws.between(0, settings.noise)
    first = int(draws.between(0, _MAX_OFFSET))
    noise = normal_numbers(image.size + _MAX_OFFSET)[first : first + image.size]
    changed = cv2.scaleAdd(noise.reshape(image.shape), deviation, image.astype(np.float32))
    return cv2.convertScaleAbs(np.maximum(changed, 0))


def compress(image: np.ndarray, settings: AugmentationSettings, draws: Draws) -> np.ndarray:
    """Compress as JPEG and decompress again."""
    quality = int(draws.between(settings.jpeg_quality, 101))
    return decode_jpeg(encode_jpeg(image, min(quality, 100)))


def erase(image: np.ndarray, settings: AugmentationSettings, draws: Draws) -> np.ndarray:
    """Erase a square, and put the mean colour there.

    DeVries and Taylor 2017, https://arxiv.org/abs/1708.04552: its centre is anywhere in the tile.
    """
    height, width = image.shape[:2]
    half = draws.between(0, settings.cutout) * min(height, width) / 2
    y, x = draws.between(0, height), draws.between(0, width)
    rows, columns = (
        slice(max(0, round(centre - half)), max(0, round(centre + half))) for centre in (y, x)
    )
    mean = cv2.mean(image)[:3]
    image = image.copy()
    image[rows, columns] = np.round(mean)
    return image


# The changes in their order, each with the settings that switch it on.
CHANGES: Sequence[tuple[Change, tuple[str, ...]]] = (
    (change_scale, ("scale",)),
    (change_stain, ("stain",)),
    (change_colour, ("brightness", "contrast", "saturation", "hue")),
    (blur, ("blur",)),
    (add_noise, ("noise",)),
    (compress, ("jpeg_quality",)),
    (erase, ("cutout",)),
)


class Augmentation:
    """Changes samples. If no change is switched on, it is false."""

    def __init__(self, settings: AugmentationSettings) -> None:
        """Choose the changes that the settings switch on."""
        self._settings = settings
        off = AugmentationSettings()
        # Each with its own random numbers, so that switching one on does not change the others.
        self._changes = [
            (change, key64(*keys))
            for change, keys in CHANGES
            if any(getattr(settings, key) != getattr(off, key) for key in keys)
        ]

    def __bool__(self) -> bool:
        return bool(self._changes)

    def __call__(self, image: np.ndarray, seed: int) -> np.ndarray:
        """Return a changed image.

        Args:
            image: (height, width, 3) uint8, contiguous; it is not changed itself.
            seed: of the sample.
        """
        for change, key in self._changes:
            image = change(image, self._settings, Draws(seed ^ key))
        return image
