"""The same as test_files_opened.py, for volumes."""

from opened import check_declared
from test_files_opened import SHARED


def test_commands_on_volumes_read_declared_files_only(volumes_run):
    check_declared(volumes_run, "prepare", "segment", *SHARED)
