"""The page of a slide that was classified by embeddings of its tiles."""

from functools import partial
from pathlib import Path

from gigatile.embeddings.state import EmbeddingState
from gigatile.report.inputs import CohortRow
from gigatile.report.slides.inputs import TrainedClassifier, read_state_of
from gigatile.report.slides.page import MapTexts, SlidePageInputs, slide_pages
from gigatile.report.unit_pages import WritePage
from gigatile.report.whole_slides.page import FILES, read_whole_map

__all__ = ["FILES", "EmbeddingClassifier", "embedding_pages", "read_state"]

_TEXTS = MapTexts(
    predictions={"call_mean": "Predicted"},
    score="Score",
    map="Each square is a tile; its colour is the score that a slide of this tile alone would get",
    gallery="the score that a slide of this tile alone would get",
)


class EmbeddingClassifier(TrainedClassifier):
    """model/settings.json."""

    encoder: dict[str, object]

    def settings(self) -> dict[str, object]:
        """Return the sections of the settings."""
        return {"tiles": self.tiles, "encoder": self.encoder, "train": self.train}


def read_state(row: CohortRow, folder: Path) -> EmbeddingState:
    """Read the state of a slide, which must match its row; see `read_state_of`."""
    state = read_state_of(row, folder, EmbeddingState)
    assert isinstance(state, EmbeddingState)
    return state


def embedding_pages(inputs: SlidePageInputs) -> WritePage:
    """Return the function that renders the page of a slide."""
    return slide_pages(inputs, partial(read_whole_map, texts=_TEXTS), FILES, read_state)
