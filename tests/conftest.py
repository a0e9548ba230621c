"""What all tests share: the real data, and commands run as a user runs them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from clones import Clone
from small_cohort import make_small_cohort
from small_volumes import make_small_volumes

ROOT = Path(__file__).resolve().parents[1]

# A test that sometimes fails helps nobody, and a slow machine is no fault of the code.
hypothesis.settings.register_profile("gigatile", deadline=None, derandomize=True)
hypothesis.settings.load_profile("gigatile")


# Tests that share what takes long to make, beside those of one file: they stay together where tests
# run on several cores. A machine has room for one cluster.
TOGETHER = {
    "cluster": ("cluster/*",),
    "docs": ("docs/*",),
    "report": ("report/*",),
    "run of volumes": ("workflow/test_*volumes*.py",),
    "alone": ("workflow/test_lung.py", "workflow/test_brains.py"),
    "run of slides": ("workflow/*",),
}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tell pytest-xdist which tests belong together; `make test` runs them so."""
    tests = ROOT / "tests"
    for item in items:
        place = item.path.relative_to(tests)
        found = (name for name, some in TOGETHER.items() if any(map(place.match, some)))
        item.add_marker(pytest.mark.xdist_group(next(found, str(place))))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data that lies beside the project and is never part of it."""
    shared = ROOT.parent / "shared"
    data = shared / "data"
    if not data.is_dir():
        if os.environ.get("CI") and shared.exists():
            pytest.fail(f"{shared} is there, but no data in it: the real data must be tested here")
        pytest.skip(f"real data not found: {data}")
    return data


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `scripts/<name>` in a process of its own; its status is the caller's to check."""

    def run(name: str, *arguments: object, **options) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, ROOT / "scripts" / name, *map(str, arguments)]
        return subprocess.run(line, capture_output=True, text=True, timeout=300, **options)

    return run


@pytest.fixture(scope="session")
def small_cohort(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Return a clone in which the small cohort lies, nothing of it done yet. Do not change it."""
    return make_small_cohort(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def small_volumes(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Return a clone in which the small cohort of volumes lies, nothing of it done yet."""
    return make_small_volumes(tmp_path_factory.mktemp("volumes"))
