"""Deep-zoom pyramids of slides on a disk and in a store."""

import tempfile
import weakref
from pathlib import Path

import openslide
from openslide.deepzoom import DeepZoomGenerator
from PIL import Image

# Side of a deep-zoom tile in pixels; tiles do not overlap.
SIDE = 256


class Pyramid(DeepZoomGenerator):
    """OpenSlide's generator, which spends a quarter of its time on pixels that could be clear."""

    def __init__(self, slide: openslide.AbstractSlide) -> None:
        super().__init__(slide, tile_size=SIDE, overlap=0, limit_bounds=False)
        self._slide = slide

    def get_tile(self, level: int, address: tuple[int, int]) -> Image.Image:
        """Return a tile in RGB."""
        tile = self._slide.read_region(*self.get_tile_coordinates(level, address))
        if tile.getchannel("A").getextrema() != (255, 255):
            return super().get_tile(level, address)
        tile = tile.convert("RGB")
        size = self.get_tile_dimensions(level, address)
        if tile.size != size:
            tile.thumbnail(size, Image.Resampling.LANCZOS)
        return tile


class StoredPyramid(Pyramid):
    """The pyramid of a slide in a store. What a tile needs is fetched before it is read."""

    def __init__(self, path: Path, scratch: Path) -> None:
        """Open a slide.

        Args:
            path: represents the address.
            scratch: a folder for the partial copy of the file, which is deleted with this object.

        Raises:
            StoreError: it cannot be read from the store.
            openslide.OpenSlideError: it is not a slide.
        """
        # These start obstore, which takes a while to import.
        from gigatile.slides.partial_slide import PartialSlide
        from gigatile.stores.partial_copy import PartialCopy
        from gigatile.stores.remote_file import open_remote

        # Slides of different folders may have the same name.
        copy = PartialCopy(open_remote(path), Path(tempfile.mkdtemp(dir=scratch)))
        weakref.finalize(self, copy.close)
        self._parts = PartialSlide(copy)
        try:
            slide = openslide.OpenSlide(copy.path)
        except openslide.OpenSlideError:
            # Perhaps for want of a part that was not fetched.
            self._parts.fetch_whole()
            slide = openslide.OpenSlide(copy.path)
        super().__init__(slide)

    def get_tile(self, level: int, address: tuple[int, int]) -> Image.Image:
        """Return a tile in RGB.

        Raises:
            StoreError: it cannot be read from the store.
        """
        (left, top), number, size = self.get_tile_coordinates(level, address)
        scale = self._slide.level_downsamples[number]
        dimensions = self._slide.level_dimensions[number]
        self._parts.fetch_region(dimensions, int(left / scale), int(top / scale), *size)
        return super().get_tile(level, address)
