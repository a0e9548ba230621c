"""A cluster for all tests of this folder, and copies of the project that submit to it."""

import os
from collections.abc import Callable, Iterator

import pytest
from clones import Clone
from cluster import Cluster, missing
from configuration import NODES
from sites import Site, settings


@pytest.fixture(scope="session")
def may_start() -> None:
    """Skip where no cluster can run; in CI that is a failure."""
    reason = missing()
    if reason and os.environ.get("CI"):
        pytest.fail(f"no test cluster: {reason}")
    if reason:
        pytest.skip(f"no test cluster: {reason}")


@pytest.fixture(scope="session")
def cluster(may_start: None) -> Iterator[Cluster]:
    """Return a cluster with every node up."""
    started = Cluster.start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def prepared(small_cohort: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Return a copy in which everything up to the shards is done. Do not change it."""
    made = small_cohort.copy(tmp_path_factory.mktemp("prepared"))
    made.write("small.yaml", settings("ranks_per_node: 1, batch_size: 16"))
    made.snakemake(
        "results/small/shards/manifest.json", "--cores", "2", "--configfile", "small.yaml"
    )
    return made


@pytest.fixture(scope="session")
def new_site(
    cluster: Cluster, prepared: Clone, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Site]:
    """Return what makes copies of it, to train in."""

    def make() -> Site:
        return Site(prepared.copy(tmp_path_factory.mktemp("site")), cluster)

    return make


@pytest.fixture
def site(new_site: Callable[[], Site]) -> Site:
    """Return a copy to train in."""
    return new_site()


@pytest.fixture
def whole_cluster(cluster: Cluster) -> Iterator[None]:
    """Put back what a test broke."""
    yield
    if not cluster.runs("slurmdbd"):
        cluster.start_accounting()
    if not cluster.runs("slurmctld"):
        cluster.start_controller()
    cluster.set_node_timeout()
    cluster.run("scancel --user root", check=False)
    for node in NODES:
        if cluster.is_off(node):
            cluster.start_node(node)
        cluster.mend_network(node)
    cluster.wait_for('test "$(sinfo -h -t idle -p cpu -o %D)" = 3', 120)
