"""The same as test_files_opened.py, of volumes."""

from opened import check_declared
from test_files_opened import SHARED


def test_every_command_on_volumes(volumes_run):
    check_declared(volumes_run, "prepare", "segment", *SHARED)
