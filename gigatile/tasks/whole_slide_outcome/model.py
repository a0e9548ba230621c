"""A trained model of numbers or risks of whole slides in memory."""

from pathlib import Path

from gigatile.model import Model
from gigatile.settings.whole_slides import WholeSlideSettings
from gigatile.tasks.slide_classification.model import scored_slide
from gigatile.tasks.slide_outcome.model import OutcomePrediction
from gigatile.tasks.whole_slide_outcome.scoring import WholeSlideOutcomeNetwork


class WholeSlideOutcomeModel(Model):
    """A trained model of numbers or risks of whole slides.

    Attributes:
        kind: `number` or `survival`.
        settings: the section `tiles`, as in training.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load `model` (.keras); `described` is its settings.json.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        self._network = WholeSlideOutcomeNetwork(model, described, WholeSlideSettings().window)
        self.kind, self.settings = self._network.scale.kind, self._network.tiles

    def predict(
        self, slide: Path | str, *, mpp: float | None = None, cores: int = 1
    ) -> OutcomePrediction:
        """Predict the outcome of a slide.

        The arguments and errors are those of
        `gigatile.tasks.slide_classification.model.WholeSlideModel.predict`.
        """
        scored, facts = scored_slide(self._network, Path(slide), mpp, cores)
        return OutcomePrediction(float(scored.scores[0]), scored.positions, facts)


def open_model(model: Path, described: Path) -> WholeSlideOutcomeModel:
    """Open a model; see `gigatile.model.Model.open`."""
    return WholeSlideOutcomeModel(model, described)
