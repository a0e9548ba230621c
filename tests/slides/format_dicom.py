"""Write DICOM slides: VL Whole Slide Microscopy."""

import hashlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
from format_parts import DOWNSAMPLES, POWER, jpeg, pyramid, tiles, whole_tiles
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    PYDICOM_IMPLEMENTATION_UID,
    JPEGBaseline8Bit,
    VLWholeSlideMicroscopyImageStorage,
    generate_uid,
)

TILE = 128


def write_dicom(
    path: Path,
    pixels: np.ndarray,
    *,
    mpp: float = 0.5,
    quality: int = 90,
    missing: Collection[tuple[int, int]] = (),
) -> Path:
    """Write a folder `path` with one file per level, and return the file of level 0.

    Args:
        path: the folder, which is created.
        pixels: level 0.
        mpp: micrometres per pixel of level 0.
        quality: of the JPEG tiles, which are YCbCr 4:2:2.
        missing: rows and columns of tiles of level 0 that are not in the file. If there are any,
            each tile records its position (TILED_SPARSE); else the tiles are in order.
    """
    path.mkdir(parents=True)
    slide = hashlib.sha256(pixels.tobytes()).hexdigest()
    for number, (factor, level) in enumerate(zip(DOWNSAMPLES, pyramid(pixels), strict=True)):
        frames, positions = [], []
        across = -(-level.shape[1] // TILE)
        for index, tile in enumerate(tiles(whole_tiles(level, TILE), TILE)):
            row, column = divmod(index, across)
            if number > 0 or (row, column) not in missing:
                frames.append(jpeg(tile, quality, subsampling=(2, 1)))
                positions.append((row, column))
        dataset = level_attributes(slide, number, level.shape, mpp * factor)
        dataset.NumberOfFrames = len(frames)
        sparse = number == 0 and bool(missing)
        dataset.DimensionOrganizationType = "TILED_SPARSE" if sparse else "TILED_FULL"
        if sparse:
            dataset.PerFrameFunctionalGroupsSequence = [plane_position(*each) for each in positions]
        dataset.PixelData = encapsulate(frames)
        dataset["PixelData"].is_undefined_length = True
        dataset.save_as(path / f"level-{number}.dcm", enforce_file_format=True)
    return path / "level-0.dcm"


def level_attributes(slide: str, number: int, shape: tuple[int, ...], mpp: float) -> Dataset:
    """Return the attributes of a level, without pixel data; the UIDs are derived from `slide`."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = VLWholeSlideMicroscopyImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[slide, f"level {number}"])
    meta.TransferSyntaxUID = JPEGBaseline8Bit
    meta.ImplementationClassUID = PYDICOM_IMPLEMENTATION_UID

    dataset = Dataset()
    dataset.file_meta = meta
    dataset.ImageType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
    if number > 0:
        dataset.ImageType = ["DERIVED", "PRIMARY", "VOLUME", "RESAMPLED"]
    dataset.SOPClassUID = meta.MediaStorageSOPClassUID
    dataset.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
    dataset.StudyInstanceUID = generate_uid(entropy_srcs=[slide, "study"])
    dataset.SeriesInstanceUID = generate_uid(entropy_srcs=[slide, "series"])
    dataset.FrameOfReferenceUID = generate_uid(entropy_srcs=[slide, "frame of reference"])
    dataset.Modality = "SM"
    dataset.InstanceNumber = number + 1

    dataset.Rows = dataset.Columns = TILE
    dataset.TotalPixelMatrixRows, dataset.TotalPixelMatrixColumns = shape[:2]
    dataset.TotalPixelMatrixFocalPlanes = 1
    dataset.SamplesPerPixel = 3
    dataset.PhotometricInterpretation = "YBR_FULL_422"
    dataset.PlanarConfiguration = 0
    dataset.BitsAllocated = dataset.BitsStored = 8
    dataset.HighBit = 7
    dataset.PixelRepresentation = 0
    dataset.LossyImageCompression = "01"
    dataset.LossyImageCompressionMethod = "ISO_10918_1"

    measures = Dataset()
    measures.PixelSpacing = [f"{mpp / 1000:.10g}"] * 2  # mm, down and across
    measures.SliceThickness = "0.001"
    shared = Dataset()
    shared.PixelMeasuresSequence = [measures]
    dataset.SharedFunctionalGroupsSequence = [shared]
    optics = Dataset()
    optics.OpticalPathIdentifier = "1"
    optics.ObjectiveLensPower = str(POWER)
    dataset.NumberOfOpticalPaths = 1
    dataset.OpticalPathSequence = [optics]
    return dataset


def plane_position(row: int, column: int) -> Dataset:
    """Return the plane position of a tile; DICOM counts pixels from 1."""
    position = Dataset()
    position.ColumnPositionInTotalImagePixelMatrix = column * TILE + 1
    position.RowPositionInTotalImagePixelMatrix = row * TILE + 1
    frame = Dataset()
    frame.PlanePositionSlideSequence = [position]
    return frame
