"""What all tests share: the real data, and commands run as a user runs them."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import hypothesis
import pytest
from clones import Clone
from object_store import ObjectStore, running_store
from small_cohort import make_small_cohort
from small_volumes import make_small_volumes
from xdist.scheduler import LoadScopeScheduling

import gigatile  # noqa: F401  before TensorFlow, whose environment it sets

ROOT = Path(__file__).resolve().parents[1]

# A test that sometimes fails helps nobody, and a slow machine is no fault of the code.
hypothesis.settings.register_profile("gigatile", deadline=None, derandomize=True)
hypothesis.settings.load_profile("gigatile")


# Files of tests that share slow fixtures: with several workers, each group runs on one worker. A
# machine has room for one cluster. The longest groups are first in `LONGEST_FIRST`, so that no
# worker is still busy with one when the others have nothing left to do.
TOGETHER = {
    "cluster": ("tests/cluster/*",),
    "docs": ("tests/docs/*",),
    "report": ("tests/report/*",),
    "run of instances": (
        *("tests/workflow/test_*instances*.py", "tests/workflow/test_baseline_of_nuclei.py"),
    ),
    "run of volumes": ("tests/workflow/test_*volumes*.py",),
    "object store": ("tests/stores/*",),
    "real data": ("tests/workflow/test_lung.py", "tests/workflow/test_brains.py"),
    "run of slides": ("tests/workflow/*",),
}
LONGEST_FIRST = (
    *("cluster", "run of slides", "docs", "run of instances", "run of volumes"),
    *("real data", "report"),
)


def group_of(nodeid: str) -> str:
    """Return the group of a test; of a test without one, its file."""
    path = PurePath(nodeid.split("::")[0])
    names = (name for name, some in TOGETHER.items() if any(map(path.match, some)))
    return next(names, str(path))


class Together(LoadScopeScheduling):
    """Gives each core the next tests that belong together; pytest-xdist calls them a scope."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest groups first."""
    positions = {name: position for position, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: positions.get(group_of(item.nodeid), len(positions)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Have pytest-xdist give out tests so."""
    return Together(config, log)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data next to the project; it is never part of the project."""
    shared = ROOT.parent / "shared"
    data = shared / "data"
    if not data.is_dir():
        if os.environ.get("CI") and shared.exists():
            pytest.fail(f"{shared} is there, but no data in it: the real data must be tested here")
        pytest.skip(f"real data not found: {data}")
    return data


@pytest.fixture(scope="session")
def running_object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """Return a running store with an empty bucket; use `store`."""
    with running_store(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def store(
    running_object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStore]:
    """Return a real object store, with its credentials in the environment."""
    from gigatile.stores import remote_file

    for name, value in running_object_store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote_file, "_KNOWN", {})
    remote_file._store.cache_clear()
    yield running_object_store
    remote_file._store.cache_clear()


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `scripts/<name>` in a subprocess; the caller checks its exit status."""

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
