"""A trained classifier of the embeddings of slides in memory."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gigatile.embeddings.embedding import embed_tiles
from gigatile.embeddings.encoder_files import encoder_checksum, encoder_id
from gigatile.embeddings.encoders import open_encoder
from gigatile.embeddings.imported import EmbeddingsError, open_imported
from gigatile.embeddings.imported_tiles import ImportedTiles
from gigatile.embeddings.stored import SlideEmbeddings
from gigatile.errors import UserError
from gigatile.model import Model
from gigatile.settings.tiles import TileSettings
from gigatile.slides.reader import SlideError, open_slide
from gigatile.slides.slide_tiles import SlideTiles
from gigatile.slides.state import SlideFacts
from gigatile.tasks.slide_embedding.scoring import BagClassifier, BagModel


@dataclass(frozen=True)
class EmbeddingPrediction:
    """The predicted class of a slide, and its map.

    Attributes:
        scores: the score of each class, rounded to six decimals.
        predicted: the class with the highest score (`call_mean` in slides.tsv).
        positions: a row per tile: x, y and side, in pixels of level 0; p_<class>…; with attention
            also attention.
        facts: the size, scale and grid of the slide, and its discarded tiles.
    """

    scores: dict[str, float]
    predicted: str
    positions: pd.DataFrame
    facts: SlideFacts


class EmbeddingModel(Model):
    """A trained classifier of the embeddings of slides.

    Attributes:
        classes: the names of the classes.
        settings: the section `tiles`, as in training.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load `model` (.keras); `described` is its settings.json.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        self._classifier = BagClassifier(model, described)
        self.classes, self.settings = self._classifier.classes, self._classifier.tiles

    def predict(
        self,
        slide: Path | str,
        *,
        encoder: Path | str | None = None,
        mpp: float | None = None,
        cores: int = 1,
    ) -> EmbeddingPrediction:
        """Extract the tiles of a slide, embed them and score the slide.

        Unlike the jobs of the workflow, this has no time limit, and the crash of a decoder ends the
        process.

        Args:
            slide: the slide's file; of a model of embeddings that another program made, the file of
                its embeddings (.h5).
            encoder: the file of the encoder, the same as in training; None: of such a model.
            mpp: micrometres per pixel of level 0; None: as in the file.
            cores: number of threads that read tiles, and of the encoder.

        Raises:
            UserError: the slide or the encoder cannot be used; the message says why.
        """
        embedded, facts = embedded_slide(self._classifier, Path(slide), encoder, mpp, cores)
        of_classes, positions = self._classifier.score_with_map(embedded)
        scores = dict(zip(self.classes, of_classes.tolist(), strict=True))
        predicted = max(self.classes, key=lambda name: scores[name])
        return EmbeddingPrediction(scores, predicted, positions, facts)


def embedded_slide(
    model: BagModel, slide: Path, encoder: Path | str | None, mpp: float | None, cores: int
) -> tuple[SlideEmbeddings, SlideFacts]:
    """Return the embeddings of a slide's tiles; see `EmbeddingModel.predict`."""
    settings = model.tiles.model_copy(update={"cores": cores})
    try:
        if model.encoder.embedded_with is not None:
            return _imported(model, slide, mpp, settings)
        if encoder is None:
            raise UserError("encoder: found None; the model needs the file of its encoder")
        return _embedded(model, slide, Path(encoder), mpp, settings)
    except (SlideError, EmbeddingsError) as error:
        raise UserError(f"{slide}: {error}") from None


def _imported(
    model: BagModel, slide: Path, mpp: float | None, settings: TileSettings
) -> tuple[SlideEmbeddings, SlideFacts]:
    tiles = ImportedTiles(slide, slide.stem, mpp, settings)
    with open_imported(slide) as embeddings:
        tiles.describe(embeddings)
        identity = embeddings.encoder_id(model.encoder)
        model.check_encoder(identity, str(slide))
        values = np.concatenate(list(embeddings.parts()))
        x, y = embeddings.corners.T
        return SlideEmbeddings(values, x, y, embeddings.extent, identity), tiles.facts


def _embedded(
    model: BagModel, slide: Path, encoder: Path, mpp: float | None, settings: TileSettings
) -> tuple[SlideEmbeddings, SlideFacts]:
    identity = encoder_id(encoder_checksum(encoder), model.encoder, settings.size)
    model.check_encoder(identity, str(encoder))
    opened_encoder = open_encoder(encoder, model.encoder, settings.size, settings.cores)
    tiles = SlideTiles(slide, slide.stem, mpp, settings)
    values, corners = [], []
    with open_slide(slide) as opened:
        for batch in embed_tiles(opened_encoder, tiles.tiles(slide, opened)):
            values.append(batch.embeddings)
            corners += [(tile.x, tile.y) for tile in batch.tiles]
    grid = tiles.facts.grid
    assert grid is not None, "a slide with tiles has a grid"
    x, y = np.array(corners, np.int64).T
    return SlideEmbeddings(np.concatenate(values), x, y, grid.extent, identity), tiles.facts


def open_model(model: Path, described: Path) -> EmbeddingModel:
    """Open a model; see `gigatile.model.Model.open`."""
    return EmbeddingModel(model, described)
