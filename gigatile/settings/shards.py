"""The section `shards`."""

from typing import ClassVar

from pydantic import Field

from gigatile.settings.section import MAX_SEED, Section


class ShardSettings(Section):
    """How training records are grouped into files."""

    EXECUTION: ClassVar[frozenset[str]] = frozenset({"nodes", "ranks_per_node"})

    nodes: int = Field(1, ge=1, le=10_000, description="Machines that write shards together.")
    ranks_per_node: int = Field(
        2,
        ge=1,
        le=1024,
        description="Processes on each of them, of one core; each holds a shard in memory.",
    )
    target_mb: float = Field(
        100, ge=0.001, le=10_000, description="Wanted size of a shard, in megabytes (10^6 bytes)."
    )
    seed: int = Field(1, ge=0, le=MAX_SEED, description="Decides which record goes to which shard.")

    @property
    def ranks(self) -> int:
        """Processes that write together."""
        return self.nodes * self.ranks_per_node

    @property
    def cores_per_rank(self) -> int:
        """Cores of a process: it reads, checks and writes in turn."""
        return 1
