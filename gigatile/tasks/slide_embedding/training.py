"""Training on the embeddings of slides: their classes."""

from collections.abc import Mapping
from typing import Any

from gigatile.embeddings.stored import embeddings_in, encoder_in
from gigatile.errors import all_faults
from gigatile.models.bag_classifier import build_bag_classifier
from gigatile.models.networks import Networks
from gigatile.records.slides import SlideReader
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.section import check_section
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks.slide_embedding.samples import EmbeddedSlides
from gigatile.training.sample_order import Sampling
from gigatile.training.slide_task import ClassTask, SlideTask
from gigatile.training.task import TrainingTask


def training_task(settings: Mapping[str, Any]) -> TrainingTask:
    """Return the task for its settings, as `Task.training` returns them."""
    return SlideEmbedding(
        check_section(TileSettings, settings["tiles"], "tiles"),
        check_section(EncoderSettings, settings["encoder"], "encoder"),
    )


class EmbeddingTask(SlideTask):
    """What the tasks on embeddings of slides share; see `TrainingTask`."""

    def __init__(self, tiles: TileSettings, encoder: EncoderSettings) -> None:
        super().__init__()
        self._tiles, self._encoder = tiles, encoder
        self._most: int | None = None

    def source(self, reader: SlideReader, augmented: bool = True) -> EmbeddedSlides:
        """Return the reader of slides."""
        return EmbeddedSlides(reader, self.targets(reader), self._most if augmented else None)

    def sampling(self, reader: SlideReader, settings: TrainSettings) -> Sampling:
        """Return what the order of the slides depends on; take the number of tiles for `source`."""
        self._most = settings.tiles_per_slide
        return super().sampling(reader, settings)

    def networks(self, reader: SlideReader, settings: TrainSettings, pretrained: bool) -> Networks:
        """Build a network of embeddings."""
        self.check_encoders(reader)
        (first,) = embeddings_in(reader, range(1))
        return build_bag_classifier(
            settings, len(first), self.outputs(reader), pretrained, self.activation
        )

    def settings(self) -> Mapping[str, Any]:
        """Return how the tiles were extracted and embedded."""
        encoder = self._encoder.model_dump(exclude=set(EncoderSettings.EXECUTION))
        return {"tiles": self._tiles.model_dump(), "encoder": encoder}

    def encoder_of(self, reader: SlideReader) -> str:
        """Return what identifies the encoder of all slides.

        Raises:
            UserError: names the slides with another encoder than most.
        """
        slides: dict[bytes, list[str]] = {}
        for number in range(len(reader)):
            # The tiles of a slide are embedded together, so the first one will do.
            encoder = encoder_in(reader, reader.records_of(number)[:1])
            slides.setdefault(encoder, []).append(reader.slide_at(number))
        usual, *others = sorted(slides, key=lambda encoder: -len(slides[encoder]))
        if others:
            raise all_faults(
                "the embeddings of these slides are of another encoder than those of most, or of "
                "tiles of another size or scale",
                [slide for encoder in others for slide in slides[encoder]],
            )
        return usual.hex()

    def check_encoders(self, reader: SlideReader) -> None:
        """Refuse slides of several encoders before the training.

        Those in a store are checked after a segment, as a request for each slide takes long.
        """
        if not reader.in_store:
            self.encoder_of(reader)

    def metadata(self, reader: SlideReader) -> Mapping[str, Any]:
        """Return the encoder and the scale of the slides."""
        return {"encoder_id": self.encoder_of(reader), **super().metadata(reader)}


class SlideEmbedding(ClassTask, EmbeddingTask):
    """Classes of slides by embeddings: cross-entropy of a softmax; see `TrainingTask`."""

    name = "slide_embedding"
