"""The section `shards`."""

from typing import ClassVar

from pydantic import Field, field_validator

from gigatile.errors import UserError
from gigatile.settings.section import MAX_SEED, Section
from gigatile.stores.addresses import address_of, parse_address


class ShardSettings(Section):
    """How training records are grouped into shards."""

    EXECUTION: ClassVar[frozenset[str]] = frozenset({"nodes", "ranks_per_node"})

    nodes: int = Field(1, ge=1, le=10_000, description="Nodes that write shards.")
    ranks_per_node: int = Field(
        2,
        ge=1,
        le=1024,
        description="Processes per node, with one core each; each one holds a shard in memory.",
    )
    target_mb: float = Field(
        100, ge=0.001, le=10_000, description="Target size of a shard in megabytes (10^6 bytes)."
    )
    store: str | None = Field(
        None,
        description="Folder in an object store where the shards are kept, such as "
        "s3://bucket/folder.\nnull: in the results, on the disk.",
    )
    seed: int = Field(
        1, ge=0, le=MAX_SEED, description="Seed of the shuffle that assigns records to shards."
    )

    @field_validator("store")
    @classmethod
    def _store_is_in_s3(cls, store: str | None) -> str | None:
        if store is None:
            return None
        if not store.startswith("s3://"):
            raise ValueError(f"found {store!r}; must be null, or s3://bucket/folder")
        try:
            return address_of(parse_address(store.rstrip("/")))
        except UserError as error:
            raise ValueError(f"found {store!r}; {error}") from None

    @property
    def ranks(self) -> int:
        """The number of processes."""
        return self.nodes * self.ranks_per_node

    @property
    def cores_per_rank(self) -> int:
        """The number of cores of a process, which reads, checks and writes in turn."""
        return 1
