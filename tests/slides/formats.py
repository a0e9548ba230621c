"""Write small slides in the formats of many scanners, for tests.

Every function writes pixels, (height, width, 3) uint8 RGB, as level 0 of a slide, downsamples the
other levels, and returns the path to open. Equal pixels give equal bytes.
"""

from format_dicom import write_dicom
from format_hamamatsu import write_hamamatsu, write_hamamatsu_vms, write_hamamatsu_vmu
from format_mirax import write_mirax
from format_sakura import write_sakura
from format_tiff import (
    write_generic_tiff,
    write_leica,
    write_philips,
    write_trestle,
    write_ventana,
)

__all__ = [
    "write_dicom",
    "write_generic_tiff",
    "write_hamamatsu",
    "write_hamamatsu_vms",
    "write_hamamatsu_vmu",
    "write_leica",
    "write_mirax",
    "write_philips",
    "write_sakura",
    "write_trestle",
    "write_ventana",
]
