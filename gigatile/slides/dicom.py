"""DICOM slides: advice for files that OpenSlide refuses, and detection of a missing level 0."""

import os
from collections.abc import Mapping
from pathlib import Path

# A DICOM file starts with a preamble of 128 arbitrary bytes and this prefix (PS3.10, section 7.1).
_PREAMBLE, _MARK = 128, b"DICM"
# Advice by a part of OpenSlide's error message.
_ADVICE = {
    "transfer syntax": "OpenSlide reads uncompressed pixels, baseline JPEG and JPEG 2000; export "
    "the slide as one of these",
    "concatenation": "files are missing; copy all files of the slide into its folder",
    "dimensions": "the file does not give the size of the slide; name a level of the slide in the "
    "sheet, or export it again",
    "Attribute": "pixels must be 8-bit RGB or YCbCr; export the slide again",
}
_DEFAULT_ADVICE = "copy all files of the slide into its folder again, or export it again"


def advice_on_dicom(path: Path, message: str | None) -> str:
    """Return advice to append to the reason for refusing a file; empty if it is not DICOM.

    Args:
        path: the file that the sheet names.
        message: OpenSlide's error; None: OpenSlide does not know the format.
    """
    try:
        with path.open("rb") as file:
            if file.read(_PREAMBLE + len(_MARK))[_PREAMBLE:] != _MARK:
                return ""
        with os.scandir(path.parent) as entries:
            count = sum(entry.name.lower().endswith(".dcm") for entry in entries)
    except OSError:
        return ""
    files = f"its folder has {count} .dcm file{'s' * (count != 1)}"
    if message is None:
        return (
            f"; it is DICOM, but not a whole-slide image (VL Whole Slide Microscopy), or its "
            f"header is truncated; {files}: name a level of the slide in the sheet, or copy it "
            "again"
        )
    advice = next((advice for part, advice in _ADVICE.items() if part in message), _DEFAULT_ADVICE)
    return f"; {files}: {advice}"


def finest_is_resampled(properties: Mapping[str, str]) -> bool:
    """Return whether the finest level of a DICOM slide was resampled from a finer one.

    OpenSlide uses the finest file in the folder as level 0, even if level 0 was not copied.
    The fourth value of Image Type is RESAMPLED for such a level and NONE for level 0 (PS3.3,
    section C.8.12.4.1.1).

    Args:
        properties: of the slide, by OpenSlide's names.
    """
    return properties.get("dicom.ImageType[3]") == "RESAMPLED"
