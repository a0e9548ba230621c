"""The volumes of one case, in memory: checked, on one grid, and normalised."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gigatile.errors import UserError
from gigatile.records.volume_form import BLOCK, LARGEST, encode_volume
from gigatile.settings.volumes import LABELS_REQUIRED, VolumeSettings
from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.channels import (
    Channel,
    Intensities,
    appearance_of,
    crop_to_content,
    join_channels,
    prepare_channel,
)
from gigatile.volumes.geometry import Geometry, compare, geometry_of, reorient_like
from gigatile.volumes.grid import Grid, forward_labels, plan_grid
from gigatile.volumes.image_checks import compare_channels
from gigatile.volumes.reader import Volume, open_volume, voxels
from gigatile.volumes.state import CaseFacts, CaseSource, ChannelStatistics, PreparedVolume

# The name of a file with all channels, and the name of the segmentation.
STACKED = "image"
SEGMENTATION = "segmentation"


@dataclass(frozen=True)
class PreparedCase:
    """A prepared case in memory.

    Attributes:
        case: the case's id.
        channels: their names.
        image: (x, y, z, C) float16, 0 outside of the head.
        labels: (x, y, z) uint8; None: the case has no segmentation.
        grid: of the voxels, with the way back to the grid of the files.
    """

    case: str
    channels: tuple[str, ...]
    image: np.ndarray
    labels: np.ndarray | None
    grid: Grid

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of voxels along each axis."""
        return self.grid.shape

    def read_image(self, start: Sequence[int], size: Sequence[int]) -> np.ndarray:
        """Return the voxels of a box, 0 outside of the volume: (*size, C) float16."""
        box = np.zeros((*size, len(self.channels)), np.float16)
        low = [max(0, first) for first in start]
        high = [min(a + b, whole) for a, b, whole in zip(start, size, self.shape, strict=True)]
        if all(a < b for a, b in zip(low, high, strict=True)):
            source = tuple(map(slice, low, high))
            to = (slice(a - c, b - c) for a, b, c in zip(low, high, start, strict=True))
            box[tuple(to)] = self.image[source]
        return box

    def encode(self) -> bytearray:
        """Return the case as a volume record."""
        return encode_volume(self.case, self.image, self.labels, self.channels, self.grid.to_json())


@dataclass(frozen=True)
class _SourceFile:
    """A file of the case, and its grid."""

    volume: Volume
    geometry: Geometry


class CaseVolumes:
    """The volumes of one case. Use it once.

    Attributes:
        facts: what is known about the case so far.
    """

    def __init__(
        self,
        case: str,
        images: Mapping[str, Path],
        segmentation: Path | None,
        settings: VolumeSettings,
        report_progress: Callable[[None], None] = lambda _: None,
    ) -> None:
        """Open nothing yet.

        Args:
            case: the case's id.
            images: a file for each modality; or one file for `image`, with all modalities as
                channels.
            segmentation: the file with the labels, if there is one.
            settings: the modalities, label values, requested spacing and checks.
            report_progress: is called at least for every file and channel.

        Raises:
            UserError: a name in `images` is not a modality; or there is a segmentation, but
                `settings.labels` is not set.
        """
        if segmentation is not None and settings.labels is None:
            raise UserError(f"case {case}: volumes.{LABELS_REQUIRED}")
        unknown = set(images) - {STACKED, *settings.modalities}
        if unknown or (STACKED in images and len(images) > 1):
            raise UserError(
                f"case {case}: found the images {', '.join(images)}; must be only {STACKED}, or "
                f"volumes.modalities: {', '.join(settings.modalities)}"
            )
        self._case = case
        # In the order of the settings.
        self._images = {
            name: images[name] for name in (STACKED, *settings.modalities) if name in images
        }
        self._segmentation = segmentation
        self._settings, self._report_progress = settings, report_progress
        self._sources: dict[str, _SourceFile] = {}
        self.facts = CaseFacts.unopened(case, segmentation is not None)

    def prepare(self) -> PreparedCase:
        """Read, check and normalise the volumes.

        Raises:
            VolumeError: the case cannot be used.
        """
        facts = self.facts
        self._open_files()
        reference = facts.reference = self._choose_reference()
        known = self._sources[reference].geometry
        whole = facts.grid = plan_grid(known, self._settings.spacing)
        labels = self._read_labels(known) if self._segmentation is not None else None
        channels = self._read_channels(known, whole)
        grid = facts.grid = crop_to_content(whole, channels, labels)
        self._check_size(grid)
        image, head = join_channels(grid, channels)
        if not head.any():
            raise VolumeError("nothing is left of the head at the prepared spacing")
        modalities = self._settings.modalities
        present = {m: k for k, m in enumerate(modalities) if m not in facts.filled}
        facts.warnings += compare_channels(image, present)
        prepared_labels = None if labels is None else forward_labels(labels, grid)
        facts.prepared = PreparedVolume(
            shape=grid.shape, spacing=grid.spacing, voxels_inside=int(head.sum())
        )
        voxel_ml = float(np.prod(grid.spacing)) / 1000
        facts.appearance = appearance_of(image, head, voxel_ml, present)
        if prepared_labels is not None:
            self._check_labels(prepared_labels, head)
        return PreparedCase(self._case, tuple(modalities), image, prepared_labels, grid)

    def check_headers(self) -> None:
        """Open all files and compare their grids; read no voxel.

        Raises:
            VolumeError: the case cannot be used.
        """
        self._open_files()
        self._choose_reference()

    def _open_files(self) -> None:
        """Open all files; faults of all of them are raised in one message."""
        facts = self.facts
        files = dict(self._images)
        if self._segmentation is not None:
            files[SEGMENTATION] = self._segmentation
        faults = []
        for name, path in files.items():
            self._report_progress(None)
            try:
                volume = open_volume(path)
                source = facts.sources[name] = CaseSource.from_volume(volume)
                geometry = geometry_of(volume)
                self._check_channels(name, volume)
            except VolumeError as error:
                faults.append(self._with_name(name, str(error)))
                continue
            self._sources[name] = _SourceFile(volume, geometry)
            source.spacing = list(geometry.spacing)
            source.orientation = geometry.orientation
            facts.warnings += [self._with_name(name, text) for text in geometry.warnings]
        missing = [name for name in self._settings.modalities if name not in self._images]
        if STACKED in self._images:
            missing = []
        if missing and (self._settings.missing == "refuse" or not self._images):
            faults.append(f"it has no {', no '.join(missing)}")
        if faults:
            raise VolumeError("; ".join(faults))
        facts.filled = missing

    def _check_channels(self, name: str, volume: Volume) -> None:
        expected = len(self._settings.modalities) if name == STACKED else 1
        if volume.channels != expected:
            names = f" ({', '.join(self._settings.modalities)})" if name == STACKED else ""
            raise VolumeError(
                f"it has {volume.channels} channel{'s' * (volume.channels > 1)}, expected "
                f"{expected}{names}"
            )

    def _with_name(self, name: str, message: str) -> str:
        """Return a message with the file's column and its name, without its folder."""
        path = self._segmentation if name == SEGMENTATION else self._images[name]
        assert path is not None
        return f"{name} ({path.name}): {message}"

    def _choose_reference(self) -> str:
        """Return the name of the file that has the case's grid."""
        facts = self.facts
        geometries = {name: source.geometry for name, source in self._sources.items()}
        first = SEGMENTATION if SEGMENTATION in geometries else next(iter(geometries))
        agreement = compare(geometries, first)
        facts.agreement, facts.difference_mm = agreement.state, agreement.difference_mm
        if agreement.state != "different":
            facts.warnings += [agreement.message] if agreement.message else []
            return first
        if not self._settings.resample:
            raise VolumeError(
                f"its volumes have different grids: {agreement.message}; set volumes.resample: "
                "true to resample them to one grid"
            )
        if first != SEGMENTATION:
            smallest = min(geometry.voxel_ml for geometry in geometries.values())
            # With a tolerance for rounding errors.
            first = next(
                name
                for name, geometry in geometries.items()
                if geometry.voxel_ml <= 1.001 * smallest
            )
        facts.agreement = "resampled"
        facts.warnings.append(
            f"its volumes had different grids and were resampled to the grid of {first}: "
            f"{agreement.message}"
        )
        return first

    def _read_labels(self, known: Geometry) -> np.ndarray:
        """Return the segmentation; the case's grid is its grid."""
        values = self._settings.label_values
        source = self._sources[SEGMENTATION]
        try:
            labels = source.volume.read_labels(values)
        except VolumeError as error:
            raise VolumeError(self._with_name(SEGMENTATION, str(error))) from None
        counts = {name: int(np.count_nonzero(labels == value)) for name, value in values.items()}
        self.facts.labels = counts
        self.facts.volumes_ml = {
            name: float(count * known.voxel_ml) for name, count in counts.items()
        }
        if not any(counts.values()):
            self.facts.warnings.append(self._with_name(SEGMENTATION, "it has no labelled voxel"))
        return labels

    def _read_channels(self, known: Geometry, whole: Grid) -> list[Channel | None]:
        """Read and normalise all channels; None for a filled one."""
        modalities = self._settings.modalities
        if STACKED in self._images:
            return list(self._read_file(STACKED, modalities, known, whole))
        return [
            None if name in self.facts.filled else self._read_file(name, (name,), known, whole)[0]
            for name in modalities
        ]

    def _read_file(
        self, name: str, modalities: Sequence[str], known: Geometry, whole: Grid
    ) -> list[Channel]:
        """Read and normalise the channels of one file."""
        facts, source = self.facts, self._sources[name]
        reoriented = reorient_like(source.geometry, known)
        prepared = []
        channels = source.volume.read_channels()
        images: list[np.ndarray] = []
        for modality in modalities:
            prefix = f"channel {modality}: " if name == STACKED else ""
            self._report_progress(None)
            try:
                images.append(next(channels))
            except VolumeError as error:
                raise VolumeError(self._with_name(name, str(error))) from None
            try:
                volume = source.volume
                dtype = None if volume.scaled else volume.dtype
                orientation = source.geometry.orientation
                # Popped, so that `prepare_channel` can free it.
                channel = prepare_channel(
                    images.pop(),
                    reoriented,
                    known,
                    whole,
                    dtype,
                    orientation,
                    Intensities.of_modality(self._settings, modality),
                )
            except VolumeError as error:
                raise VolumeError(self._with_name(name, f"{prefix}{error}")) from None
            prepared.append(channel)
            facts.background[modality] = channel.background
            facts.normalised[modality] = ChannelStatistics(mean=channel.mean, sd=channel.sd)
            warnings = list(channel.warnings)
            if channel.invalid:
                warnings.append(f"{voxels(channel.invalid)} with invalid values, set to 0")
            facts.warnings += [self._with_name(name, f"{prefix}{text}") for text in warnings]
        return prepared

    def _check_size(self, grid: Grid) -> None:
        voxels = int(np.prod([-(-side // BLOCK) * BLOCK for side in grid.shape]))
        size = voxels * (2 * len(self._settings.modalities) + self.facts.labelled)
        if size > LARGEST:
            shape = "×".join(map(str, grid.shape))
            raise VolumeError(
                f"its head has {shape} voxels at the prepared spacing, {size:,} bytes; a record "
                f"can have at most {LARGEST:,}"
            )

    def _check_labels(self, prepared: np.ndarray, head: np.ndarray) -> None:
        """Warn of labels outside of the head, and of labels that resampling has removed."""
        outside = int(np.count_nonzero((prepared > 0) & ~head))
        if outside:
            self.facts.warnings.append(
                f"labels outside of the head: {voxels(outside)} of the prepared case"
            )
        for name, value in self._settings.label_values.items():
            count = self.facts.labels[name]
            if count and not (prepared == value).any():
                self.facts.warnings.append(
                    f"{name} is lost at the prepared spacing: it has {voxels(count)} in the file"
                )
