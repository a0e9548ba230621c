"""One case into a record: its files checked, put on one grid, normalised, and its state."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.errors import UserError, record_unexpected_error
from gigatile.files import remove_half_written, sha256_of, write_json
from gigatile.parallel.supervision import Crashed, Stalled, run_supervised
from gigatile.records.tfrecord import write_records
from gigatile.records.volume_form import BLOCK, LARGEST, encode_volume
from gigatile.settings.volumes import LABELS_REQUIRED, VolumeSettings
from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.channels import Channel, cut_to_all, join_channels, prepare_channel
from gigatile.volumes.geometry import Geometry, compare, geometry_of, turned_like
from gigatile.volumes.grid import Grid, forward_labels, plan_grid
from gigatile.volumes.image_checks import compare_channels
from gigatile.volumes.reader import Volume, open_volume, voxels

SCHEMA = 1
# The name of a file that holds all channels, and that of the segmentation.
STACKED = "image"
SEGMENTATION = "segmentation"


@dataclass(frozen=True)
class PreparedFiles:
    """The files that preparing a case writes."""

    records: Path
    state: Path


def prepare_case(
    case: str,
    images: Mapping[str, Path],
    segmentation: Path | None,
    settings: VolumeSettings,
    files: PreparedFiles,
) -> dict[str, Any]:
    """Prepare a case; write its record and, last, its state.

    A case that cannot be used gets empty records and a state with the reason. So does one that
    makes no progress for `settings.stall_minutes`: the work is done in a fork of this process. So
    does one with an unexpected error, whose traceback goes to stderr, unless it is a resource error
    (`gigatile.errors.is_resource_error`).

    Args:
        case: whose volumes these are.
        images: a file for each modality; or one for `image`, which has them all as its channels.
        segmentation: the file of its labels, where there is one.
        settings: the modalities, the labels' values, the wanted spacing and what is refused.
        files: to write.

    Returns:
        The state, as written.

    Raises:
        UserError: the case cannot be used, and `settings.on_error` is `stop`; or `images` has a
            name that is no modality; or there is a segmentation and `settings.labels` is not set.
    """
    if segmentation is not None and settings.labels is None:
        raise UserError(f"case {case}: volumes.{LABELS_REQUIRED}")
    unknown = set(images) - {STACKED, *settings.modalities}
    if unknown or (STACKED in images and len(images) > 1):
        raise UserError(
            f"case {case}: found the images {', '.join(images)}; must be {STACKED} alone, or of "
            f"volumes.modalities: {', '.join(settings.modalities)}"
        )
    remove_half_written(*vars(files).values())  # of a job that was killed
    work = _Preparing(case, images, segmentation, settings, files)
    try:
        return run_supervised(work.run, settings.stall_minutes)
    except Stalled:
        remove_half_written(*vars(files).values())
        limit = settings.stall_minutes
        return work.give_up(f"nothing came of it for {limit:g} minutes", stalled=limit)
    except Crashed as crash:
        # Nothing here but NumPy reads a file: it is the system that ended it, out of memory mostly.
        remove_half_written(*vars(files).values())
        raise UserError(
            f"case {case}: the process that prepared it was ended by {crash.by}; it may need more "
            "memory, or time"
        ) from None


@dataclass(frozen=True)
class _Source:
    """A file of the case, and where it lies."""

    volume: Volume
    geometry: Geometry


class _Preparing:
    """The work on one case, and what is known of it so far."""

    def __init__(
        self,
        case: str,
        images: Mapping[str, Path],
        segmentation: Path | None,
        settings: VolumeSettings,
        files: PreparedFiles,
    ) -> None:
        self._case = case
        # In the settings' order, whatever the caller's is.
        self._images = {
            name: images[name] for name in (STACKED, *settings.modalities) if name in images
        }
        self._segmentation = segmentation
        self._settings = settings
        self._files = files
        self._forget()

    def _forget(self) -> None:
        """Begin with nothing known of the case."""
        self._sources: dict[str, _Source] = {}
        self._facts: dict[str, Any] = {
            "schema": SCHEMA,
            "case": self._case,
            "state": "failed",
            "reason": None,
            "sources": {},
            "labelled": self._segmentation is not None,
            "warnings": [],
            "filled": [],
            "agreement": None,
            "difference_mm": None,
            "reference": None,
            "grid": None,
            "prepared": None,
            "background": {},
            "normalised": {},
            "labels": {},
            "volumes_ml": {},
        }

    def run(self, tell: Callable[[Any], None]) -> dict[str, Any]:
        """Do it, in the process that is supervised; `tell` is called as it gets on."""
        self._tell = tell
        try:
            record = self._prepared()
            write_records(self._files.records, (record,))
            self._facts["state"] = "prepared"
            return self._finish()
        except VolumeError as error:
            return self.give_up(str(error))
        except Exception as error:
            return record_unexpected_error(error, self.give_up, self._clean_up, self._forget)

    def _clean_up(self) -> None:
        remove_half_written(*vars(self._files).values())

    def give_up(self, reason: str, stalled: float | None = None) -> dict[str, Any]:
        """Write what there is of a case that cannot be used.

        Args:
            reason: for people.
            stalled: the limit in minutes, where it stalled: with a higher one it is tried again.

        Raises:
            UserError: `on_error` is `stop`.
        """
        if stalled is not None:
            self._facts["stalled_minutes"] = stalled
        self._facts |= {"state": "failed", "reason": " ".join(reason.split())}
        if self._settings.on_error == "stop":
            raise UserError(
                f"case {self._case}: {self._facts['reason']}\n"
                "To go on without such cases, set volumes.on_error: record"
            ) from None
        write_records(self._files.records, ())
        return self._finish()

    def _finish(self) -> dict[str, Any]:
        records = self._files.records
        self._facts["records"] = {"bytes": records.stat().st_size, "sha256": sha256_of(records)}
        self._facts["settings"] = self._settings.model_dump(exclude=set(self._settings.EXECUTION))
        write_json(self._files.state, self._facts)
        return self._facts

    def _prepared(self) -> bytearray:
        """Return the case's record."""
        self._open()
        reference = self._facts["reference"] = self._agreed()
        known = self._sources[reference].geometry
        whole = plan_grid(known, self._settings.spacing)
        self._facts["grid"] = whole.to_json()
        labels = self._labels(known) if self._segmentation is not None else None
        channels = self._channels(known, whole)
        grid = cut_to_all(whole, channels, labels)
        self._facts["grid"] = grid.to_json()
        self._check_size(grid)
        image, inside = join_channels(grid, channels)
        if not inside.any():
            raise VolumeError("nothing of the head is left at the prepared spacing")
        modalities = self._settings.modalities
        present = {m: k for k, m in enumerate(modalities) if m not in self._facts["filled"]}
        self._facts["warnings"] += compare_channels(image, present)
        prepared_labels = None if labels is None else forward_labels(labels, grid)
        self._facts["prepared"] = {
            "shape": list(grid.shape),
            "spacing": list(grid.spacing),
            "voxels_inside": int(inside.sum()),
        }
        if prepared_labels is not None:
            self._look_at(prepared_labels, inside)
        return encode_volume(
            self._case, image, prepared_labels, self._settings.modalities, grid.to_json()
        )

    def _open(self) -> None:
        """Open every file; what is wrong with any is told at once."""
        files = dict(self._images)
        if self._segmentation is not None:
            files[SEGMENTATION] = self._segmentation
        faults = []
        for name, path in files.items():
            self._tell(None)
            try:
                volume = open_volume(path)
                self._facts["sources"][name] = dict(volume.facts)
                geometry = geometry_of(volume)
                self._check_channels(name, volume)
            except VolumeError as error:
                faults.append(self._of(name, str(error)))
                continue
            self._sources[name] = _Source(volume, geometry)
            self._facts["sources"][name] |= {
                "spacing": list(geometry.spacing),
                "orientation": geometry.orientation,
            }
            self._facts["warnings"] += [self._of(name, told) for told in geometry.warnings]
        missing = [name for name in self._settings.modalities if name not in self._images]
        if STACKED in self._images:
            missing = []
        if missing and (self._settings.missing == "refuse" or not self._images):
            faults.append(f"it has no {', no '.join(missing)}")
        if faults:
            raise VolumeError("; ".join(faults))
        self._facts["filled"] = missing

    def _check_channels(self, name: str, volume: Volume) -> None:
        wanted = len(self._settings.modalities) if name == STACKED else 1
        if volume.channels != wanted:
            names = f" ({', '.join(self._settings.modalities)})" if name == STACKED else ""
            raise VolumeError(
                f"it has {volume.channels} channel{'s' * (volume.channels > 1)}, where {wanted} "
                f"{'are' if wanted > 1 else 'is'} expected{names}"
            )

    def _of(self, name: str, told: str) -> str:
        """Say of which file something is told; without its folder, as it may move."""
        path = self._segmentation if name == SEGMENTATION else self._images[name]
        assert path is not None
        return f"{name} ({path.name}): {told}"

    def _agreed(self) -> str:
        """Return the file whose grid is the case's."""
        geometries = {name: source.geometry for name, source in self._sources.items()}
        first = SEGMENTATION if SEGMENTATION in geometries else next(iter(geometries))
        agreement = compare(geometries, first)
        self._facts["agreement"] = agreement.state
        self._facts["difference_mm"] = agreement.difference_mm
        if agreement.state != "different":
            self._facts["warnings"] += [agreement.told] if agreement.told else []
            return first
        if not self._settings.resample:
            raise VolumeError(
                f"its volumes lie on different grids: {agreement.told}; volumes.resample: true "
                "puts them on one"
            )
        if first != SEGMENTATION:
            smallest = min(geometry.voxel_ml for geometry in geometries.values())
            # Two that differ by rounding are equally small.
            first = next(
                name
                for name, geometry in geometries.items()
                if geometry.voxel_ml <= 1.001 * smallest
            )
        self._facts["agreement"] = "resampled"
        self._facts["warnings"].append(
            f"its volumes lay on different grids and were resampled to that of {first}: "
            f"{agreement.told}"
        )
        return first

    def _labels(self, known: Geometry) -> np.ndarray:
        """Return the segmentation in the order of axes of the case's grid, whose own it is."""
        values = self._settings.label_values
        source = self._sources[SEGMENTATION]
        try:
            labels = source.volume.read_labels(values)
        except VolumeError as error:
            raise VolumeError(self._of(SEGMENTATION, str(error))) from None
        counts = {name: int(np.count_nonzero(labels == value)) for name, value in values.items()}
        self._facts["labels"] = counts
        self._facts["volumes_ml"] = {
            name: float(count * known.voxel_ml) for name, count in counts.items()
        }
        if not any(counts.values()):
            self._facts["warnings"].append(self._of(SEGMENTATION, "it has no labelled voxel"))
        return labels

    def _channels(self, known: Geometry, whole: Grid) -> list[Channel | None]:
        """Read and normalise every channel; None for one that is filled."""
        modalities = self._settings.modalities
        if STACKED in self._images:
            return list(self._read(STACKED, modalities, known, whole))
        return [
            None if name in self._facts["filled"] else self._read(name, (name,), known, whole)[0]
            for name in modalities
        ]

    def _read(
        self, name: str, modalities: Sequence[str], known: Geometry, whole: Grid
    ) -> list[Channel]:
        """Read and normalise the channels of one file."""
        source = self._sources[name]
        own = turned_like(source.geometry, known)
        found = []
        channels = source.volume.read_channels()
        images: list[np.ndarray] = []
        for modality in modalities:
            told = f"channel {modality}: " if name == STACKED else ""
            self._tell(None)
            try:
                images.append(next(channels))
            except VolumeError as error:
                raise VolumeError(self._of(name, str(error))) from None
            try:
                volume = source.volume
                dtype = None if volume.scaled else volume.dtype
                orientation = source.geometry.orientation
                # Popped, so that `prepare_channel` can free it.
                channel = prepare_channel(images.pop(), own, known, whole, dtype, orientation)
            except VolumeError as error:
                raise VolumeError(self._of(name, f"{told}{error}")) from None
            found.append(channel)
            self._facts["background"][modality] = channel.background
            self._facts["normalised"][modality] = {"mean": channel.mean, "sd": channel.sd}
            for warning in channel.warnings:
                self._facts["warnings"].append(self._of(name, f"{told}{warning}"))
            if channel.lost:
                lost = f"{told}{voxels(channel.lost)} without a number, set to 0"
                self._facts["warnings"].append(self._of(name, lost))
        return found

    def _check_size(self, grid: Grid) -> None:
        voxels = int(np.prod([-(-side // BLOCK) * BLOCK for side in grid.shape]))
        size = voxels * (2 * len(self._settings.modalities) + self._facts["labelled"])
        if size > LARGEST:
            told = "×".join(map(str, grid.shape))
            raise VolumeError(
                f"its head has {told} voxels at the prepared spacing, {size:,} bytes; a record "
                f"holds {LARGEST:,}"
            )

    def _look_at(self, prepared: np.ndarray, inside: np.ndarray) -> None:
        """Warn of labels that lie where no head is, or that are lost at the prepared spacing."""
        astray = int(np.count_nonzero((prepared > 0) & ~inside))
        if astray:
            self._facts["warnings"].append(
                f"outside the head it has labels, in {voxels(astray)} of the prepared case"
            )
        for name, value in self._settings.label_values.items():
            count = self._facts["labels"][name]
            if count and not (prepared == value).any():
                self._facts["warnings"].append(
                    f"{name} is lost at the prepared spacing: it has {voxels(count)} in the file"
                )
