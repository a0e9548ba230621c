"""The folders in which the pages are tried."""

import functools
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from clones import Clone
from markdown_pages import in_checkout
from provoked import provoked_by_sheets, provoked_by_slides  # noqa: F401 - fixtures
from provoked_volumes import (  # noqa: F401 - fixtures
    folder_of_a_good_case,
    provoked_by_case_sheets,
    provoked_by_cases,
    warned_of_cases,
)
from trials import try_blocks


@pytest.fixture(scope="session")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Run the blocks of a page in a separate folder and return the folder; once for each page.

    README.md runs in a fresh clone and leaves a finished run. Every other page starts with a copy
    of it.
    """

    @functools.cache
    def try_page(page: str) -> Path:
        folder = tmp_path_factory.mktemp(Path(page).stem)
        if page == "README.md":
            Clone(folder)
            (folder / ".venv").symlink_to(sys.prefix)
        else:
            shutil.copytree(try_page("README.md"), folder, symlinks=True, dirs_exist_ok=True)
        try_blocks(in_checkout(page, False), folder)
        return folder

    return try_page
