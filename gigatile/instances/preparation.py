"""Prepare the images of a part: write their records and their states."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gigatile.cohort.images import ANNOTATIONS, SHARED_SUFFIX, Image
from gigatile.errors import (
    UserError,
    all_faults,
    is_resource_error,
    unexpected_error,
)
from gigatile.files import remove_half_written, sha256_of_bytes, write_json
from gigatile.instances.image_files import ImageError
from gigatile.instances.image_records import coco_file, read_records
from gigatile.instances.state import ImageFacts, ImageFile, ImageState, PartState
from gigatile.parallel.supervision import Crashed, Stalled, run_supervised
from gigatile.records.instances import AnnotatedImage, encode_annotated
from gigatile.records.parts import Span
from gigatile.records.tfrecord import FOOTER, HEADER, write_records
from gigatile.settings.instances import InstanceSettings
from gigatile.slides.appearance import AppearanceSum, colour_of
from gigatile.slides.quality import SMALLEST_MEASURED, measure
from gigatile.slides.reader import SlideError
from gigatile.slides.slide_files import fingerprint_of
from gigatile.states import RecordsFile
from gigatile.stores.addresses import address_of
from gigatile.stores.errors import StoreError

Prepared = tuple[ImageFacts, list[bytes]]


def prepare_part(
    part: str, images: Sequence[Image], settings: InstanceSettings, records: Path, state: Path
) -> PartState:
    """Prepare images; write their records and, last, their states.

    An image that cannot be used gets a state with the reason, and no record. So does one that makes
    no progress for `settings.stall_minutes`, or on which a decoder crashes: each image is prepared
    in a fork of this process. So does one with an unexpected error, unless it is a resource error.

    Args:
        part: name of the part.
        images: in the order of the sheet.
        settings: the section `instances`.
        records, state: files to write.

    Raises:
        UserError: an image cannot be used, and `settings.on_error` is `stop`: lists all of them.
    """
    remove_half_written(records, state)  # of a job that was killed
    states: list[ImageState] = []

    def prepared() -> Iterator[bytes]:
        offset = 0
        for image in images:
            facts, encoded = _prepare_supervised(image, settings)
            size = sum(HEADER.size + len(data) + FOOTER.size for data in encoded)
            span = Span(offset=offset, bytes=size, sha256=sha256_of_bytes(*encoded))
            states.append(ImageState(**dict(facts), records=span))
            offset += size
            yield from encoded

    write_records(records, prepared())
    failed = [f"image {each.image}: {each.reason}" for each in states if each.state == "failed"]
    if failed and settings.on_error == "stop":
        records.unlink()
        raise all_faults(
            f"{len(failed)} image(s) cannot be used; to continue without them, set "
            "instances.on_error: record",
            failed,
        )
    limits = [each.stalled_minutes for each in states if each.stalled_minutes is not None]
    result = PartState(
        part=part,
        images=states,
        records=RecordsFile.from_path(records),
        settings=settings.model_dump(mode="json", exclude=set(settings.EXECUTION)),
        stalled_minutes=max(limits, default=None),
    )
    write_json(state, result.to_json())
    return result


def _prepare_supervised(image: Image, settings: InstanceSettings) -> Prepared:
    """Prepare an image in a supervised process."""
    if image.annotations is not None and image.annotations.suffix == SHARED_SUFFIX:
        coco_file(image.annotations)  # read before the fork, once for all images
    try:
        # Created here, because the supervised process may be killed before it cleans up.
        with tempfile.TemporaryDirectory(prefix="gigatile-") as scratch:
            return run_supervised(
                lambda report: _prepare(image, settings, report, Path(scratch)),
                settings.stall_minutes,
            )
    except Stalled:
        limit = settings.stall_minutes
        return _failed(image, f"no progress for {limit:g} minutes", limit), []
    except Crashed as crash:
        if crash.killed:
            raise UserError(
                f"image {image.id} ({address_of(image.path)}): the process that prepared it was "
                f"killed by {crash.by}; it may need more memory or time"
            ) from None
        return _failed(image, f"the process that read it crashed ({crash.by})"), []


def _failed(image: Image, reason: str, stalled: float | None = None) -> ImageFacts:
    text = " ".join(reason.split())
    return ImageFacts(image=image.id, reason=text, stalled_minutes=stalled)


def _appearance(records: Sequence[AnnotatedImage]) -> dict[str, float]:
    """Return how the pixels of all records of an image look."""
    appearance = AppearanceSum()
    for record in records:
        if min(record.height, record.width) >= SMALLEST_MEASURED:
            pixels = record.pixels()
            appearance.add(colour_of(pixels), measure(pixels), record.height * record.width)
    return appearance.figures()


def _prepare(
    image: Image,
    settings: InstanceSettings,
    report_progress: Callable[[None], None],
    scratch: Path,
) -> Prepared:
    """Return what is known about an image, and its records; called in the supervised process."""
    facts = ImageFacts(image=image.id, mpp=image.mpp)
    try:
        files = {"path": image.path, ANNOTATIONS: image.annotations}
        named = {column: path for column, path in files.items() if path is not None}
        facts.fingerprint = fingerprint_of(*named.values())
        facts.sources = {
            column: ImageFile(name=path.name, fingerprint=fingerprint_of(path))
            for column, path in named.items()
        }
        report_progress(None)
        records = list(read_records(image, settings, facts, report_progress, scratch))
        annotated = [record.instances for record in records if record.instances is not None]
        facts.annotated = bool(annotated)
        for index, name in enumerate(settings.categories, 1) if annotated else ():
            numbers = [each.classes[~each.crowd] == index for each in annotated]
            facts.instances[name] = int(sum(number.sum() for number in numbers))
        facts.crowds = int(sum(each.crowd.sum() for each in annotated))
        empty = annotated and not any(map(len, annotated))
        if empty and settings.unannotated == "leave_out":
            raise ImageError("has no instances (instances.unannotated: leave_out)")
        facts.appearance = _appearance(records)
        encoded = list(map(encode_annotated, records))
    except (ImageError, SlideError) as error:
        facts.reason = " ".join(str(error).split())
        return facts, []
    except StoreError as error:
        if not error.is_of_file:  # the job fails, and can be tried again
            raise UserError(str(error)) from None
        return _failed(image, f"it cannot be read from its store: {error.strerror}"), []
    except Exception as error:
        if is_resource_error(error):
            raise
        return _failed(image, unexpected_error(error)), []
    facts.state, facts.regions = "prepared", len(records)
    facts.pixels = sum(record.height * record.width for record in records)
    return facts, encoded
