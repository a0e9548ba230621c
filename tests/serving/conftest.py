"""Servers of small models with random weights."""

from collections.abc import Callable, Iterator

import pytest
from bundles import make_bundle
from servers import Server, running

from gigatile.bundle.contents import Bundle
from gigatile.bundle.copying import copy_bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory) -> Bundle:
    """A bundle with random weights. Do not change it."""
    return make_bundle(tmp_path_factory.mktemp("bundles") / "tiny", classes=("luad", "lusc", "nor"))


@pytest.fixture(scope="session")
def start(tmp_path_factory) -> Callable:
    """Return the function that starts a server; see `running`."""
    return lambda *arguments: running(tmp_path_factory.mktemp("server"), *arguments)


@pytest.fixture(scope="session")
def server(bundle, start, tmp_path_factory) -> Iterator[Server]:
    """A server of two versions of a model; its limits are small. Do not stop it."""
    newer = tmp_path_factory.mktemp("bundles") / "newer"
    copy_bundle(bundle, newer, version=12)
    other = make_bundle(tmp_path_factory.mktemp("bundles") / "other", name="other", seed=2, size=32)
    with start(
        *(bundle.folder, newer, other.folder, "--batch-wait-ms", 20, "--max-instances", 200),
        *("--max-body-bytes", 8_000_000, "--body-seconds", 3, "--header-seconds", 2),
    ) as started:
        yield started
