"""The state of a slide with embeddings, embeddings/<slide>.json."""

from pydantic import Field

from gigatile.slides.state import SlideState
from gigatile.states import StateModel


class EncoderFacts(StateModel):
    """The encoder of a slide's embeddings.

    Attributes:
        name, licence: as in the settings.
        sha256: of its file, or of its files together; None: another program made the embeddings.
        size: side of its input, in pixels; None: not known.
        mean, deviation: how pixels are scaled; None: they are not.
        dimensions: numbers of an embedding.
    """

    name: str
    licence: str
    sha256: str | None
    size: int | None
    mean: list[float] | None
    deviation: list[float] | None
    dimensions: int


class EmbeddingState(SlideState):
    """The state of a slide: that of its tiles, and their embeddings.

    Attributes:
        records: the file of the embeddings.
        tiles_sha256: of the file of the tiles.
        encoder: None: the slide could not be tiled.
        positions: of embeddings that another program made, a hash of where the tiles are; see
            `gigatile.embeddings.imported.ImportedEmbeddings.positions`.
    """

    tiles_sha256: str
    encoder: EncoderFacts | None
    positions: str | None = Field(None, exclude_if=lambda positions: positions is None)

    @property
    def sha256_of_tiles(self) -> str:
        """The SHA-256 of the file of its tiles."""
        return self.tiles_sha256
