"""shards/manifest.json: which shards there are, what they contain, and their checksums."""

from pathlib import Path

from pydantic import Field, model_validator

from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.json_models import JsonModel, UnitCounts, read_model
from gigatile.stores.addresses import is_address, parse_address

SCHEMA = 4
# The largest ratio of the scales of slides that are seen as a whole.
MAX_MPP_RATIO = 1.1
MANIFEST = "manifest.json"


class SlideInShard(JsonModel):
    """A slide with all of its tiles in one shard.

    Attributes:
        slide: its id.
        tiles: the number of its records, which follow those of the slide before.
        columns, rows: of its tile grid.
        extent: side of a tile in pixels of level 0.
        mpp: micrometres per pixel of a tile; None if unknown.
    """

    slide: str
    tiles: int
    columns: int
    rows: int
    extent: float
    mpp: float | None = None


class Shard(JsonModel):
    """A shard.

    Attributes:
        file: path relative to the manifest, or the address in a store.
        index: path relative to the manifest.
        records: the number of records.
        bytes: the size of the file.
        sha256, index_sha256: checksums of the file and of the index.
        classes: the classes that the numbers in the index refer to; None: those of the manifest.
        slides: the slides in the order of their records; None: records of all slides are mixed.
        version: of the file in a store; see `gigatile.stores.remote_file.RemoteFile.version`.
    """

    file: str
    records: int
    bytes: int
    sha256: str
    index: str
    index_sha256: str
    classes: list[str] | None = None
    slides: list[SlideInShard] | None = Field(None, exclude_if=lambda slides: slides is None)
    version: str | None = Field(None, exclude_if=lambda version: version is None)

    def path_from(self, manifest: Path) -> Path:
        """Return the path of the file, which may represent an address."""
        return parse_address(self.file) if is_address(self.file) else manifest.parent / self.file


class ShardedSplit(UnitCounts):
    """The shards of a split.

    Attributes:
        records: the number of records.
        unit: `slide` or `case`.
        members: the number of slides or cases.
        by_label: the number of records of each label.
        shards: in the order of their records.
    """

    records: int
    unit: str
    members: int
    by_label: dict[str, int]
    shards: list[Shard]


class Manifest(JsonModel):
    """The shards of a run, or of several runs.

    Attributes:
        schema_version: `SCHEMA`.
        inputs: the SHA-256 of the record files of each split; of joined runs, those of their
            manifests and split tables.
        seed: decides which record goes to which shard; None: joined runs.
        target_mb: target size of a shard; None: joined runs.
        times: how often an epoch shows the train records of each joined run; None: a single run.
        classes: the labels in the order of the model's outputs.
        splits: train and valid.
    """

    schema_version: int = Field(SCHEMA, alias="schema")
    inputs: dict[str, str] = Field(default_factory=dict)
    seed: int | None = None
    target_mb: float | None = None
    times: dict[str, int] | None = None
    classes: list[str]
    splits: dict[str, ShardedSplit]

    @model_validator(mode="after")
    def _classes_are_known(self) -> "Manifest":
        for split in self.splits.values():
            for shard in split.shards:
                if unknown := set(shard.classes or ()) - set(self.classes):
                    raise ValueError(f"{shard.file} has classes {', '.join(sorted(unknown))}")
        return self

    @property
    def unit(self) -> str:
        """`slide` or `case`."""
        return next((split.unit for split in self.splits.values()), "slide")


def read_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        UserError: the file is missing, damaged or of another schema.
    """
    content = read_json(path)
    if isinstance(content, dict) and content.get("schema") != SCHEMA:
        raise UserError(
            f"{path}: schema {content.get('schema')}, expected {SCHEMA}; delete it and run again"
        )
    return read_model(Manifest, path)
