"""The scanner of a slide, from the properties of its file."""

from collections.abc import Mapping

import openslide

# Model and number of a scanner, by OpenSlide's names (https://openslide.org/formats/).
_PROPERTIES = (
    "aperio.ScanScope ID",
    "hamamatsu.Product",
    "hamamatsu.NDP.S/N",
    "leica.device-model",
    "philips.DICOM_MANUFACTURERS_MODEL_NAME",
    "philips.DICOM_DEVICE_SERIAL_NUMBER",
    "ventana.ScannerModel",
    "ventana.UnitNumber",
    "dicom.ManufacturerModelName",
    "dicom.DeviceSerialNumber",
)
# In MIRAX files, each section of Slidedat.ini may have it.
_MIRAX = ".SCANNER_HARDWARE_ID"


def scanner_of(properties: Mapping[str, str]) -> str | None:
    """Return the vendor, the model and the number of the scanner.

    Args:
        properties: of the slide, by OpenSlide's names.

    Returns:
        For example "aperio SS1302"; None if the file has neither a model nor a number.
    """
    parts = [properties[name] for name in _PROPERTIES if properties.get(name)]
    parts += sorted(
        value
        for name, value in properties.items()
        if name.startswith("mirax.") and name.endswith(_MIRAX) and value
    )[:1]
    words = " ".join(parts).split()
    if not words:
        return None
    return " ".join([*properties.get(openslide.PROPERTY_NAME_VENDOR, "").split(), *words])
