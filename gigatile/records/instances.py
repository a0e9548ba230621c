"""The record of an image with its instances: its features, encoding and decoding."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import imagecodecs
import numpy as np

from gigatile.errors import UserError
from gigatile.instances.annotations import Instances
from gigatile.instances.run_lengths import check_runs, decode_runs
from gigatile.records.example import Values, decode_lists, encode_example
from gigatile.records.parts import span_of
from gigatile.records.tfrecord import read_record_at, read_records, record_offsets
from gigatile.records.tile import decode_jpeg

JPEG = b"\xff\xd8\xff"


@dataclass(frozen=True)
class AnnotatedImage:
    """An image with its instances.

    Attributes:
        image: RGB, encoded as JPEG or PNG.
        image_id: the id of the image in the sheet.
        height, width: in pixels.
        mpp: micrometres per pixel; None if unknown.
        instances: None: the image has no annotations, for example an image to predict.
        region: left, top, right and bottom in the file of which this is a region, in pixels of
            level 0; None: it is the whole file.
    """

    image: bytes
    image_id: str
    height: int
    width: int
    mpp: float | None
    instances: Instances | None
    region: tuple[float, float, float, float] | None = None

    def pixels(self) -> np.ndarray:
        """Return the decoded image: (height, width, 3) uint8.

        Raises:
            UserError: the image is damaged, or has another size.
        """
        try:
            pixels = decode_image(self.image)
            if pixels.shape != (self.height, self.width, 3) or pixels.dtype != np.uint8:
                raise ValueError(f"{pixels.dtype} of shape {pixels.shape}")
        except ValueError as error:
            raise UserError(
                f"image {self.image_id}: its pixels are damaged: {error}; delete its record and "
                "run again"
            ) from None
        return pixels


def decode_image(data: bytes) -> np.ndarray:
    """Return the pixels of a JPEG or PNG in RGB: (height, width, 3) uint8.

    Releases the GIL.

    Raises:
        ValueError: the image is damaged.
    """
    if data.startswith(JPEG):
        return decode_jpeg(data)
    try:
        return np.asarray(imagecodecs.png_decode(data))
    except RuntimeError as error:  # the library's error for damaged files
        raise ValueError(str(error)) from None


def encode_png(pixels: np.ndarray) -> bytes:
    """Return pixels (height, width, 3) uint8 as PNG without metadata."""
    return bytes(imagecodecs.png_encode(np.ascontiguousarray(pixels), level=6))


def encode_annotated(image: AnnotatedImage) -> bytes:
    """Return an image as a serialised tf.train.Example.

    Features: `image`, `image_id` (bytes), `height`, `width`, `annotated` (int64), if known `mpp`
    (float), and of a region of a slide `region` (float: left, top, right, bottom). For n instances:
    `boxes` (float, 4 n: y1, x1, y2, x2), `classes`, `crowd` (int64, n), `crops` (int64, 4 n) and
    `masks` (bytes, n): the mask in its crop as COCO's compressed run-length code. Lists without
    values are left out.
    """
    instances = image.instances
    features: dict[str, Values] = {
        "image": image.image,
        "image_id": image.image_id,
        "height": image.height,
        "width": image.width,
        "annotated": int(instances is not None),
    }
    if image.mpp is not None:
        features["mpp"] = float(image.mpp)
    if image.region is not None:
        features["region"] = list(map(float, image.region))
    if instances is not None:
        features |= {
            "boxes": instances.boxes.reshape(-1),
            "classes": instances.classes,
            "crowd": instances.crowd.astype(np.int64),
            "crops": instances.crops.reshape(-1),
            "masks": list(instances.masks),
        }
    return encode_example(features)


def decode_annotated(data: bytes) -> AnnotatedImage:
    """Decode an image that `encode_annotated` encoded.

    Raises:
        UserError: it is another kind of record, for example of another program.
    """
    try:
        lists = decode_lists(data)
        masks = lists.get("masks", [])
        instances = Instances(
            boxes=np.array(lists.get("boxes", []), np.float32).reshape(-1, 4),
            classes=np.array(lists.get("classes", []), np.int32),
            crowd=np.array(lists.get("crowd", []), bool),
            crops=np.array(lists.get("crops", []), np.int32).reshape(-1, 4),
            masks=masks,
        )
        lengths = {len(value) for value in vars(instances).values()}
        if len(lengths) != 1 or not all(isinstance(mask, bytes) for mask in masks):
            raise ValueError("lists of different lengths")
        image, mpp = lists["image"][0], lists.get("mpp", [None])[0]
        if not isinstance(image, bytes) or not isinstance(mpp, float | None):
            raise ValueError("a feature has another type")
        height, width = int(lists["height"][0]), int(lists["width"][0])
        _check_masks(instances, height, width)
        return AnnotatedImage(
            image=image,
            image_id=lists["image_id"][0].decode(),
            height=height,
            width=width,
            mpp=mpp,
            instances=instances if lists["annotated"][0] else None,
            region=_region(lists.get("region")),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"the record is not an annotated image: {error!r}") from None


def _region(values: list[object] | None) -> tuple[float, float, float, float] | None:
    if values is None:
        return None
    left, top, right, bottom = np.array(values, np.float64).tolist()
    return left, top, right, bottom


def _check_masks(instances: Instances, height: int, width: int) -> None:
    """Check that the masks can be decoded.

    Raises:
        ValueError: a mask leaves the image, or its run-length code is damaged.
    """
    crops = instances.crops.astype(np.int64)
    inside = (crops[:, :2] >= 0) & (crops[:, 2:] <= (height, width))
    if not (inside & (crops[:, :2] < crops[:, 2:])).all():
        raise ValueError("a mask leaves the image")
    for code, (top, left, bottom, right) in zip(instances.masks, crops.tolist(), strict=True):
        check_runs(decode_runs(code), bottom - top, right - left)


def read_annotated(path: Path) -> Iterator[AnnotatedImage]:
    """Yield the images of a record file.

    Raises:
        UserError: the file is damaged, or has a record that is not an annotated image.
    """
    for number, data in enumerate(read_records(path), 1):
        try:
            yield decode_annotated(data)
        except UserError as error:
            raise UserError(f"{path}: record {number}: {error}") from None


def read_records_of(folder: Path, part: str, image: str) -> Iterator[AnnotatedImage]:
    """Yield the records of an image: one, or one for each annotated region of a slide.

    Args:
        folder: of the parts; see `gigatile.records.parts`.
        part: the name of the image's part.
        image: the id.

    Raises:
        UserError: a file is missing or damaged, or has the records of another image.
    """
    path = folder / f"{part}.tfrecord"
    begin, size = span_of(folder, part, image)
    for offset in record_offsets(path, begin, begin + size).tolist():
        record = decode_annotated(read_record_at(path, offset))
        if record.image_id != image:
            raise UserError(
                f"{path}: has the records of {record.image_id!r} where those of {image!r} should "
                "be; delete this file and run again"
            )
        yield record
