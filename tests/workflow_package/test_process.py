"""The process in which Snakemake runs, and that of its commands."""

import gc
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gigatile.workflow import process
from gigatile.workflow.process import prepare_process


@pytest.fixture(autouse=True)
def _restore(monkeypatch):
    """Restore the process after the test, and leave Snakemake unchanged."""
    monkeypatch.setattr(process, "keep_updated_outputs", lambda: None)
    monkeypatch.setattr(process, "record_orphaned_jobs", lambda: None)
    monkeypatch.setattr(process, "end_on_sigterm", lambda: None)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


def test_commands_use_this_python_and_the_library_of_the_project():
    prepare_process(SimpleNamespace(is_main_process=False), "/project")
    assert os.environ["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    assert os.environ["PYTHONPATH"] == "/project"


def test_log_level_of_the_user_is_kept(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    prepare_process(SimpleNamespace(is_main_process=False), "/project")
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"


def test_garbage_collection_is_rare():
    prepare_process(SimpleNamespace(is_main_process=False), "/project")
    assert gc.get_threshold()[0] >= 100_000
