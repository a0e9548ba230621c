"""Copies of the project, fresh or after a run of the small cohort."""

from pathlib import Path

import pytest
from clones import Clone
from small_cohort import COHORT, embedded_settings, whole_settings
from small_images import PREDICTED, image_settings, make_new_images, make_small_images
from tiny_encoder import write_tiny_encoder


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """Return a fresh clone."""
    return Clone(tmp_path)


@pytest.fixture(scope="session")
def small_run(small_cohort: Clone) -> Clone:
    """Return the clone with slides after the whole workflow. Do not change it."""
    small_cohort.traced("--cores", "2", "--configfile", "small.yaml")
    return small_cohort


@pytest.fixture(scope="session")
def volumes_run(small_volumes: Clone) -> Clone:
    """Return the clone with volumes after the whole workflow. Do not change it."""
    small_volumes.traced("--cores", "2", "--configfile", "volumes.yaml")
    return small_volumes


@pytest.fixture(scope="session")
def instances_run(tmp_path_factory) -> Clone:
    """Return a clone with images after the whole workflow. Do not change it."""
    run = make_small_images(tmp_path_factory.mktemp("images"))
    run.traced("--cores", "2", "--configfile", "images.yaml")
    return run


@pytest.fixture(scope="session")
def predicted_images(instances_run: Clone, tmp_path_factory) -> Clone:
    """Return a copy of the run after prediction of images and whole slides. Do not change it.

    See `make_new_images`.
    """
    copy = instances_run.copy(tmp_path_factory.mktemp("new images"))
    make_new_images(copy.folder)
    copy.write("images.yaml", image_settings(PREDICTED))
    done = copy.traced("--cores", "2", "--configfile", "images.yaml")
    assert "rule train:" not in done.stdout + done.stderr
    return copy


@pytest.fixture(scope="session")
def whole_run(small_run, tmp_path_factory) -> Clone:
    """Return a run on whole slides, next to the run of a tile classifier. Do not change it."""
    run = small_run.copy(tmp_path_factory.mktemp("whole"))
    run.write("whole.yaml", whole_settings())
    run.traced("--cores", "2", "--configfile", "whole.yaml")
    return run


@pytest.fixture(scope="session")
def embedded_run(small_cohort, tmp_path_factory) -> Clone:
    """Return a run on embeddings. Do not change it.

    It predicts a test slide again, as N1, and a file that is no slide, N2.
    """
    run = small_cohort.copy(tmp_path_factory.mktemp("embedded"))
    write_tiny_encoder(run.folder / "cohort/tiny.onnx")
    slide = COHORT["test"][0]
    run.write("new.tsv", f"slide\tpath\nN1\tcohort/{slide}.svs\nN2\tcohort/text.svs\n")
    run.write("embedded.yaml", embedded_settings())
    run.traced("--cores", "2", "--configfile", "embedded.yaml")
    return run


@pytest.fixture
def copied_run(small_run: Clone, tmp_path: Path) -> Clone:
    """Return a copy of the run, which the test may change."""
    return small_run.copy(tmp_path)
