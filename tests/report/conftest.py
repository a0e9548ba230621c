"""Folders of small runs."""

import shutil
from pathlib import Path

import pytest
from built_folds import build_fold
from case_runs import build_case_run
from slide_runs import build_run


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder that no test changes."""
    return build_run(tmp_path_factory.mktemp("whole") / "demo")


@pytest.fixture
def run(whole_run: Path, tmp_path: Path) -> Path:
    """A copy of the run folder that a test may change."""
    return Path(shutil.copytree(whole_run, tmp_path / "demo"))


@pytest.fixture(scope="session")
def whole_case_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder on volumes that no test changes; the data are in its parent folder."""
    return build_case_run(tmp_path_factory.mktemp("cases") / "demo")


@pytest.fixture
def case_run(whole_case_run: Path, tmp_path: Path) -> Path:
    """A copy of the run folder on volumes that a test may change."""
    shutil.copytree(whole_case_run.parent / "data", tmp_path / "data")
    return Path(shutil.copytree(whole_case_run, tmp_path / "demo"))


@pytest.fixture(scope="session")
def whole_folds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run for each of three folds, which no test changes."""
    folder = tmp_path_factory.mktemp("folds")
    for fold in (1, 2, 3):
        build_fold(folder, fold)
    return folder


@pytest.fixture
def runs(whole_folds: Path, tmp_path: Path) -> list[Path]:
    """Copies of the runs of three folds, which a test may change."""
    shutil.copytree(whole_folds, tmp_path / "runs")
    return [tmp_path / f"runs/fold-{fold}" for fold in (1, 2, 3)]
