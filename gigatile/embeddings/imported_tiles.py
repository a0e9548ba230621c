"""The tiles of a file of embeddings: where they are, and an overview that shows them."""

from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
from PIL import Image

from gigatile.embeddings.imported import (
    MAX_TILES,
    EmbeddingsError,
    ImportedEmbeddings,
    open_imported,
)
from gigatile.settings.tiles import TileSettings
from gigatile.slides.index import AREAS, TileIndex
from gigatile.slides.pictures import LONGEST
from gigatile.slides.reader import SlideError
from gigatile.slides.slide_files import fingerprint_of, size_and_time_of
from gigatile.slides.state import SlideFacts, SlideSource, TileCounts, TileGrid

# Colours of the overview: glass, and tiles.
GLASS, TILE = (255, 255, 255), (214, 202, 214)


class ImportedTiles:
    """The tiles of a file of embeddings; see `gigatile.slides.slide_tiles.SlideTiles`.

    They have no pixels, so there are no records of tiles. The grid is that of tiles without
    overlap; a tile belongs to the cell that its corner is closest to.
    """

    def __init__(
        self,
        source: Path,
        slide_id: str,
        sheet_mpp: float | None,
        settings: TileSettings,
        report_progress: Callable[[SlideFacts | None], None] = lambda facts: None,
    ) -> None:
        """Set up; no file is opened yet. The settings for tissue and scale are not used."""
        self._source, self._sheet_mpp = source, sheet_mpp
        self._settings, self._report_progress = settings, report_progress
        self.picture = Image.new("RGB", (1, 1), GLASS)
        self.mask = Image.new("1", (1, 1))
        self.index: TileIndex | None = None
        self.facts = SlideFacts.unopened(slide_id, source.name, sheet_mpp)

    def encoded(self, path: Path, scratch: Path | None) -> Generator[bytes]:
        """Read the file; yield no records.

        Args:
            path: of the file, or of a local copy.
            scratch: not used.

        Raises:
            SlideError: it cannot be used.
        """
        try:
            with open_imported(path) as embeddings:
                self.describe(embeddings)
                # All of them are read, so that a damaged file is recorded here.
                for _ in embeddings.parts():
                    self._report_progress(None)
        except EmbeddingsError as error:
            raise SlideError(str(error)) from None
        yield from ()

    def describe(self, embeddings: ImportedEmbeddings) -> None:
        """Take the facts, the table and the overview from an open file.

        Raises:
            EmbeddingsError: its tiles are too far apart.
        """
        facts = self.facts
        facts.source = SlideSource(
            name=self._source.name,
            bytes=size_and_time_of(self._source)[0],
            fingerprint=fingerprint_of(self._source),
            width=embeddings.width,
            height=embeddings.height,
        )
        scales = {} if self._sheet_mpp is None else {"sheet": self._sheet_mpp}
        for power, mpp in self._settings.objectives:
            if embeddings.objective == power:
                scales["objective"] = mpp
        facts.mpp_by_source = scales
        facts.mpp_from, facts.mpp = next(iter(scales.items()), (None, None))
        size = embeddings.size or max(1, round(embeddings.extent))
        cells = np.floor(embeddings.corners / embeddings.extent + 0.5).astype(np.int64)
        shape = (embeddings.width, embeddings.height)
        columns, rows = (
            max(int(side // embeddings.extent), int(most) + 1)
            for side, most in zip(shape, cells.max(axis=0), strict=True)
        )
        if columns * rows > MAX_TILES:
            raise EmbeddingsError(
                f"its tiles of {embeddings.extent:g} px are spread over {shape[0]} × {shape[1]} px"
            )
        ratio = embeddings.extent / size
        facts.grid = TileGrid(
            size=size,
            mpp=None if facts.mpp is None else facts.mpp * ratio,
            extent=embeddings.extent,
            level=0,
            scale=(1.0, 1.0),
            resampled=ratio != 1,
            columns=columns,
            rows=rows,
        )
        filled = np.zeros((rows, columns), bool)
        filled[cells[:, 1], cells[:, 0]] = True
        self.index = _index(filled, embeddings.extent)
        facts.tiles = TileCounts(
            kept=len(embeddings.corners), dropped={"background": int((~filled).sum())}, marked={}
        )
        self.mask = _picture(filled, embeddings)
        coloured = np.where(np.asarray(self.mask)[..., None], TILE, GLASS).astype(np.uint8)
        self.picture = Image.fromarray(coloured)


def _index(filled: np.ndarray, extent: float) -> TileIndex:
    rows, columns = filled.shape
    across, down = (
        np.rint(np.arange(count) * extent).astype(np.int64) for count in (columns, rows)
    )
    y, x = np.meshgrid(down, across, indexing="ij")
    areas = {name: np.zeros(filled.size) for name in AREAS} | {
        "tissue": filled.ravel().astype(float)
    }
    index = TileIndex(np.stack([x.ravel(), y.ravel()], axis=1), areas)
    index.dropped = dict.fromkeys(np.flatnonzero(~filled.ravel()).tolist(), "background")
    return index


def _picture(filled: np.ndarray, embeddings: ImportedEmbeddings) -> Image.Image:
    """Return the cells with tiles in the shape of the slide, mode 1."""
    shrink = min(1, LONGEST / max(embeddings.width, embeddings.height))
    width, height = (max(1, round(side * shrink)) for side in (embeddings.width, embeddings.height))
    column, row = (
        np.minimum((np.arange(side) / shrink / embeddings.extent).astype(int), count - 1)
        for side, count in ((width, filled.shape[1]), (height, filled.shape[0]))
    )
    return Image.fromarray(filled[row[:, None], column])
