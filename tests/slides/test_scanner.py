"""The scanner of a slide, from real files and from the properties that OpenSlide documents."""

import openslide
import pytest

from gigatile.slides.scanner import scanner_of


@pytest.mark.parametrize(
    ("file", "scanner"),
    [
        ("cmu-1-small-region.svs", "aperio CPAPERIOCS"),
        ("test3-TRITC-2-560.ndpi", "hamamatsu C9600-12 950291"),
    ],
)
def test_scanner_of_a_real_slide(shared_data, file, scanner):
    with openslide.OpenSlide(shared_data / "wsi" / file) as slide:
        assert scanner_of(slide.properties) == scanner


@pytest.mark.parametrize(
    ("properties", "scanner"),
    [
        ({}, None),
        ({"openslide.vendor": "generic-tiff"}, None),
        ({"openslide.vendor": "aperio", "aperio.ScanScope ID": " "}, None),
        ({"openslide.vendor": "leica", "leica.device-model": "SCN400"}, "leica SCN400"),
        ({"openslide.vendor": "ventana", "ventana.UnitNumber": "2000515"}, "ventana 2000515"),
        (
            {
                "openslide.vendor": "philips",
                "philips.DICOM_DEVICE_SERIAL_NUMBER": "FMT0107",
                "philips.DICOM_MANUFACTURERS_MODEL_NAME": "UFS Scanner",
            },
            "philips UFS Scanner FMT0107",
        ),
        (
            {
                "openslide.vendor": "mirax",
                "mirax.GENERAL.SLIDE_ID": "1",
                "mirax.NONHIERLAYER_1_SECTION.SCANNER_HARDWARE_ID": "PANNORAMIC\n7",
            },
            "mirax PANNORAMIC 7",
        ),
        # Another vendor's property is in the file of a converter.
        ({"dicom.ManufacturerModelName": "VL 120"}, "VL 120"),
    ],
)
def test_scanner_has_vendor_model_and_number(properties, scanner):
    assert scanner_of(properties) == scanner
