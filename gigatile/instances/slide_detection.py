"""Detect the instances of a whole slide: write its table, outlines, overview and state."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
from PIL import Image

from gigatile.errors import UserError, record_unexpected_error
from gigatile.files import remove_half_written, write_json
from gigatile.instances.detection import Detection
from gigatile.instances.geojson import GeoJsonWriter, write_geojson
from gigatile.instances.outlines import polygons_of, to_level_0
from gigatile.instances.seams import SeamJoiner
from gigatile.instances.slide_input import SlideInput, plan_input
from gigatile.instances.slide_state import (
    SCHEMA,
    DetectionFacts,
    DetectionState,
    InputGrid,
    Windows,
)
from gigatile.instances.slide_table import (
    InstanceTable,
    SlideScale,
    describe_instance,
    write_instances,
)
from gigatile.instances.slide_windows import open_windows, windows_with_tissue
from gigatile.instances.window_grid import WindowGrid
from gigatile.parallel.supervision import Crashed, Stalled, run_supervised
from gigatile.settings.slide_instances import SlideInstanceSettings
from gigatile.settings.tiles import TileSettings
from gigatile.slides.opening import open_source
from gigatile.slides.overview import read_overview
from gigatile.slides.pictures import render_overview, write_picture
from gigatile.slides.reader import RegionError, Slide, SlideError
from gigatile.slides.scale import find_scale
from gigatile.slides.slide_source import describe_source
from gigatile.slides.state import SlideSource, UnreadableTile
from gigatile.slides.tiff import check_directories
from gigatile.slides.tissue import MASK_LONGEST, find_tissue, region_sizes
from gigatile.states import OtherFile
from gigatile.stores.addresses import address_of, is_remote

OVERVIEW_QUALITY = 80
# Windows that the model processes together.
BATCH = 4
# A window spans this many pixels of the overview, on which tissue is found.
PIXELS_PER_WINDOW = 16
# Unreadable parts of the overview are assumed to be tissue, up to this share of the slide.
MAX_UNREADABLE_OVERVIEW = 0.25
# Unreadable windows that the state lists with their reasons.
MAX_UNREADABLE_LISTED = 10
# Colours of the classes in QuPath, one after the other: Okabe and Ito 2008, without black.
COLOURS = (
    *((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66)),
    *((0, 114, 178), (213, 94, 0), (204, 121, 167)),
)


class WindowDetector(Protocol):
    """Detects the instances of windows; see `gigatile.instances.detector.Detector`."""

    @property
    def categories(self) -> Sequence[str]:
        """The names of the categories, by `Detection.category`."""

    @property
    def limit(self) -> int:
        """The most detections of a window."""

    @property
    def sha256(self) -> str:
        """The checksum of the model's file."""

    def detect_windows(self, windows: Sequence[np.ndarray]) -> list[list[Detection]]:
        """Return the detections of windows (height, width, 3) uint8, all of the same shape."""


@dataclass(frozen=True)
class SlideJob:
    """A slide, and how its instances are detected.

    Attributes:
        slide: its id.
        source: the slide's file.
        mpp: micrometres per pixel of level 0 from the sheet; None: those of the file.
        requested_mpp: micrometres per pixel at which it is read; None: those of level 0.
        window, overlap: side and overlap of the windows in pixels.
        settings: the section `slide_instances`.
        cores: threads that read windows.
        stall_minutes: the longest time without progress.
        stop_on_error: whether a slide that cannot be used is an error.
    """

    slide: str
    source: Path
    mpp: float | None
    requested_mpp: float | None
    window: int
    overlap: int
    settings: SlideInstanceSettings
    cores: int = 1
    stall_minutes: float = 10
    stop_on_error: bool = False


@dataclass(frozen=True)
class DetectionFiles:
    """The files that are written for a slide.

    Attributes:
        table: position, size, shape, class and score of each instance (.parquet).
        outlines: of the instances, for QuPath (.geojson.gz).
        overview: of the slide (.jpg).
        state: what was detected, and how (.json).
    """

    table: Path
    outlines: Path
    overview: Path
    state: Path


def detect_slide(
    job: SlideJob, open_detector: Callable[[], WindowDetector], sha256: str, files: DetectionFiles
) -> DetectionState:
    """Detect the instances of a slide; write its table, outlines and overview and, last, its state.

    A slide that cannot be used gets no instances and a state with the reason. So does one that
    makes no progress for `job.stall_minutes`, or on which a decoder crashes: the work is done in a
    fork of this process. So does one with an unexpected error, unless it is a resource error.

    Args:
        job: the slide.
        open_detector: returns the detector; called in the fork, as TensorFlow cannot be forked.
        sha256: of the model's file.
        files: to write.

    Raises:
        UserError: the slide cannot be used, and `job.stop_on_error`; or the fork was killed.
    """
    remove_half_written(*vars(files).values())  # of a job that was killed
    # Ends OpenCV's threads: a fork of a process with OpenCV's threads hangs.
    cv2.setNumThreads(1)
    with contextlib.ExitStack() as close:
        # Created here, because the supervised process may be killed before it cleans up.
        scratch = None
        if is_remote(job.source):
            scratch = Path(close.enter_context(tempfile.TemporaryDirectory()))
        detection = _SlideDetection(job, open_detector, sha256, files, scratch)
        return _run_supervised(detection, job, files)


def _run_supervised(
    detection: "_SlideDetection", job: SlideJob, files: DetectionFiles
) -> DetectionState:
    """Detect the instances in a supervised process; see `detect_slide`."""
    try:
        return run_supervised(detection.run, job.stall_minutes)
    except Stalled as stalled:
        limit = job.stall_minutes
        reason = f"no progress for {limit:g} minutes"
        return detection.give_up(reason, stalled.last, limit)
    except Crashed as crash:
        if crash.killed:
            remove_half_written(*vars(files).values())
            raise UserError(
                f"slide {job.slide} ({address_of(job.source)}): the process that detected its "
                f"instances was killed by {crash.by}; it may need more memory or time"
            ) from None
        return detection.give_up(f"the process that read it crashed ({crash.by})", crash.last)


class _SlideDetection:
    """The detection on one slide, and what is known about the slide so far."""

    def __init__(
        self,
        job: SlideJob,
        open_detector: Callable[[], WindowDetector],
        sha256: str,
        files: DetectionFiles,
        scratch: Path | None,
    ) -> None:
        self._job, self._files, self._scratch = job, files, scratch
        self._open_detector, self._sha256 = open_detector, sha256
        self._reset()

    def _reset(self) -> None:
        """Discard all results."""
        job = self._job
        self._facts = DetectionFacts(
            slide=job.slide,
            source=SlideSource(name=job.source.name),
            mpp=job.mpp,
            requested_mpp=job.requested_mpp,
        )
        self._picture = Image.new("RGB", (1, 1), (255, 255, 255))

    def run(self, report: Callable[[DetectionFacts | None], None]) -> DetectionState:
        """Detect the instances; called in the supervised process."""
        try:
            with open_source(self._job.source, self._scratch, lambda: report(None), print) as slide:
                self._detect(slide, report)
            self._facts.state = "detected"
            return self._finish()
        except SlideError as error:
            return self.give_up(str(error))
        except Exception as error:
            return record_unexpected_error(error, self.give_up, self._clean_up, self._reset)

    def _clean_up(self) -> None:
        remove_half_written(*vars(self._files).values())

    def give_up(
        self, reason: str, facts: DetectionFacts | None = None, stalled: float | None = None
    ) -> DetectionState:
        """Write the files of a slide that cannot be used.

        Args:
            reason: for the user.
            facts: what is known about the slide; None: what this process knows.
            stalled: the limit in minutes that it exceeded; with a higher limit it is tried again.
        """
        self._clean_up()
        self._facts = facts = facts or self._facts
        facts.state, facts.reason = "failed", " ".join(reason.split())
        facts.stalled_minutes, facts.instances, facts.cut = stalled, {}, 0
        if self._job.stop_on_error:
            raise UserError(
                f"slide {self._job.slide} ({address_of(self._job.source)}): {facts.reason}\n"
                "To continue without such slides, set instances.on_error: record"
            ) from None
        with (
            write_instances(self._files.table, self._job.slide),
            write_geojson(self._files.outlines, self._job.slide),
        ):
            pass
        return self._finish()

    def _finish(self) -> DetectionState:
        """Write the overview and, last, the state."""
        write_picture(self._files.overview, self._picture, "JPEG", quality=OVERVIEW_QUALITY)
        names = ("table", "outlines", "overview")
        state = DetectionState(
            **dict(self._facts),
            schema=SCHEMA,
            files={name: OtherFile.from_path(getattr(self._files, name)) for name in names},
            settings=self._job.settings.model_dump(mode="json"),
            model=self._sha256,
        )
        write_json(self._files.state, state.to_json())
        return state

    def _detect(self, slide: Slide, report: Callable[[DetectionFacts | None], None]) -> None:
        job, facts = self._job, self._facts
        facts.source = describe_source(job.source, slide)
        check_directories(slide.path, slide)
        scale = find_scale(slide, job.mpp, TileSettings().objectives)
        facts.mpp, facts.mpp_from = scale.mpp, scale.source
        facts.contradictions = list(scale.contradictions)
        report(facts)
        source = plan_input(slide, scale.mpp, job.requested_mpp, "slide_instances.mpp")
        grid = WindowGrid(source.height, source.width, job.window, job.overlap)
        facts.input = InputGrid(
            height=source.height,
            width=source.width,
            across=source.across,
            down=source.down,
            mpp=None if scale.mpp is None else scale.mpp * (source.across + source.down) / 2,
            level=source.level,
            resampled=source.resampled,
        )
        with_tissue = self._find_tissue(slide, source, grid, report)
        facts.windows = Windows(
            side=grid.side,
            overlap=grid.overlap,
            columns=len(grid.columns),
            rows=len(grid.rows),
            tissue=int(with_tissue.sum()),
        )
        report(facts)
        detector = self._open_detector()
        facts.instances = dict.fromkeys(detector.categories, 0)
        facts.windows.limit = detector.limit
        report(facts)
        with (
            write_instances(self._files.table, job.slide) as table,
            write_geojson(self._files.outlines, job.slide) as outlines,
        ):
            writer = _InstanceWriter(facts, source, detector.categories, table, outlines)
            joiner = SeamJoiner(grid)
            for window in np.flatnonzero(~with_tissue).tolist():
                writer.write(joiner.add(window, None))
            for window, detections in self._windows(slide, source, grid, with_tissue, detector):
                writer.write(joiner.add(window, detections))
                report(None)
            joiner.finish()

    def _find_tissue(
        self,
        slide: Slide,
        source: SlideInput,
        grid: WindowGrid,
        report: Callable[[DetectionFacts | None], None],
    ) -> np.ndarray:
        """Return which windows have tissue: (n,) bool."""
        facts = self._facts
        downsample = max(1.0, grid.side * source.across / PIXELS_PER_WINDOW)
        overview = read_overview(
            slide.path,
            slide,
            downsample,
            MASK_LONGEST,
            lambda: report(None),
            MAX_UNREADABLE_OVERVIEW,
        )
        self._picture = render_overview(overview.pixels, overview.downsample, slide)
        sizes = region_sizes(TileSettings(), facts.mpp, overview.downsample)
        tissue = find_tissue(overview.pixels, *sizes)
        facts.illumination, facts.tissue_threshold = tissue.illumination, float(tissue.threshold)
        across, down = overview.downsample
        facts.tissue_pixels = float(np.count_nonzero(tissue.stained)) * across * down
        return windows_with_tissue(grid, source, overview, tissue)

    def _windows(
        self,
        slide: Slide,
        source: SlideInput,
        grid: WindowGrid,
        with_tissue: np.ndarray,
        detector: WindowDetector,
    ) -> Iterator[tuple[int, list[Detection] | None]]:
        """Yield the windows with tissue, row by row, and their detections.

        None: the window cannot be read.
        """
        chosen = np.flatnonzero(with_tissue)
        if not len(chosen):
            return
        batch: list[tuple[int, np.ndarray]] = []
        job = self._job
        boxes = grid.boxes[chosen]
        with open_windows(slide.path, slide, source, boxes, job.cores) as (choice, pixels):
            self._facts.reading = choice
            for window, read in zip(chosen.tolist(), pixels, strict=True):
                if isinstance(read, RegionError):
                    self._add_unreadable(window, grid, source, read)
                    yield window, None
                    continue
                batch.append((window, read))
                if len(batch) == BATCH:
                    yield from self._detected(batch, detector)
                    batch = []
            if batch:
                yield from self._detected(batch, detector)

    def _detected(
        self, batch: Sequence[tuple[int, np.ndarray]], detector: WindowDetector
    ) -> Iterator[tuple[int, list[Detection]]]:
        windows = self._facts.windows
        assert windows is not None
        by_window = detector.detect_windows([pixels for _, pixels in batch])
        for (window, _), detections in zip(batch, by_window, strict=True):
            windows.full += len(detections) >= detector.limit
            yield window, [d for d in detections if d.score >= self._job.settings.score_threshold]

    def _add_unreadable(
        self, window: int, grid: WindowGrid, source: SlideInput, error: RegionError
    ) -> None:
        """Count a window that cannot be read.

        Raises:
            SlideError: there are too many of them.
        """
        facts, windows = self._facts, self._facts.windows
        assert windows is not None
        top, left, _, _ = grid.box(window)
        x, y = round(left * source.across), round(top * source.down)
        windows.unreadable += 1
        reason = " ".join(str(error).split())
        if len(facts.unreadable) < MAX_UNREADABLE_LISTED:
            facts.unreadable.append(UnreadableTile(x=x, y=y, reason=reason))
        if windows.unreadable > self._job.settings.max_unreadable * windows.tissue:
            raise SlideError(
                f"{windows.unreadable} of its windows cannot be read, more than "
                f"{self._job.settings.max_unreadable:.0%} of the {windows.tissue} with tissue; at "
                f"({x}, {y}): {reason}"
            )


class _InstanceWriter:
    """Writes instances to the table and the outlines of a slide, and counts them."""

    def __init__(
        self,
        facts: DetectionFacts,
        source: SlideInput,
        categories: Sequence[str],
        table: InstanceTable,
        outlines: GeoJsonWriter,
    ) -> None:
        self._facts, self._source, self._categories = facts, source, categories
        self._table, self._outlines = table, outlines
        self._scale = SlideScale(source.across, source.down, facts.mpp)

    def write(self, instances: Sequence[Detection]) -> None:
        """Write instances in pixels of the input."""
        scale = (self._source.across, self._source.down)
        for instance in instances:
            name = self._categories[instance.category]
            row = describe_instance(instance, self._scale, name)
            self._table.add(row)
            polygons = polygons_of(instance.mask)
            self._outlines.add(
                to_level_0(polygons, instance.top, instance.left, scale),
                name,
                COLOURS[instance.category % len(COLOURS)],
                {title: row[column] for title, column in MEASUREMENTS.items()},
            )
            self._facts.instances[name] += 1
            self._facts.cut += instance.cut


# Measurements in QuPath: their names there, and their columns in the table.
MEASUREMENTS = {
    "Score": "score",
    "Area µm^2": "area_um2",
    "Perimeter µm": "perimeter_um",
    "Major axis µm": "major_um",
    "Minor axis µm": "minor_um",
    "Eccentricity": "eccentricity",
    "Solidity": "solidity",
}
