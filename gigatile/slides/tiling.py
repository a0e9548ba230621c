"""One slide into tiles: its records, its state and its overview."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gigatile.errors import UserError
from gigatile.files import fingerprint, sha256_of, write_json, write_whole
from gigatile.records import Tile, encode_tile, write_records
from gigatile.records.tile import encode_jpeg
from gigatile.settings.tiles import TileSettings
from gigatile.slides.grid import Grid, plan_grid, read_tile
from gigatile.slides.reader import Slide, SlideError, open_slide
from gigatile.slides.tissue import tissue_fractions, tissue_mask

SCHEMA = 2
# The overview on which tissue is recognised: a tile spans this many of its pixels, unless the
# slide is so large that the overview would be; and the longest side of the one that is kept.
MASK_PIXELS_PER_TILE = 16
MASK_LONGEST = 4096
OVERVIEW_LONGEST = 2048
OVERVIEW_QUALITY = 80
SOURCE_FACTS = ("bytes", "fingerprint", "vendor", "width", "height", "levels", "objective_power")


def tile_slide(
    source: Path,
    slide_id: str,
    sheet_mpp: float | None,
    settings: TileSettings,
    records: Path,
    state: Path,
    overview: Path,
) -> dict[str, Any]:
    """Cut a slide into tiles; write its records, its overview and, last, its state.

    A slide that cannot be used gets empty records, a blank overview of one pixel and a state with
    the reason.

    Args:
        source: the slide's file.
        slide_id: whose tiles these are.
        sheet_mpp: micrometres per pixel of level 0 from the sample sheet, before the file's own.
        settings: size, scale and quality of the tiles.
        records, state, overview: the files to write.

    Returns:
        The state, as written.

    Raises:
        UserError: the slide cannot be used, and `settings.on_error` is `stop`.
    """
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "slide": slide_id,
        "state": "failed",
        "reason": None,
        "source": {"name": source.name} | dict.fromkeys(SOURCE_FACTS),
        "mpp": sheet_mpp,
        "mpp_from": "sheet" if sheet_mpp is not None else None,
        "grid": None,
        "tiles": {"kept": 0, "dropped": {"background": 0}},
        "tissue_threshold": None,
    }
    picture = Image.new("RGB", (1, 1), (255, 255, 255))
    try:
        with open_slide(source) as slide:
            facts["source"] |= _source_facts(source, slide)
            if sheet_mpp is None and (own_mpp := slide.mpp) is not None:
                facts["mpp"], facts["mpp_from"] = own_mpp, "file"
            grid = plan_grid(slide, facts["mpp"], settings)
            facts["grid"] = asdict(grid)
            low, downsample = _overview(slide, grid)
            picture = _fit(low, downsample, slide)
            mask, facts["tissue_threshold"] = tissue_mask(low)
            fractions = tissue_fractions(mask, downsample, grid)
            kept = 1 - fractions <= settings.max_background + 1e-9
            facts["tiles"] = {
                "kept": int(kept.sum()),
                "dropped": {"background": int((~kept).sum())},
            }
            if not kept.any():
                raise SlideError(
                    f"none of its {len(kept)} tiles has at most {settings.max_background:.0%} "
                    f"background; the best has {1 - fractions.max():.1%}"
                )
            write_records(
                records,
                _tiles(slide, slide_id, grid, fractions, kept, settings.quality),
            )
            facts["state"] = "tiled"
    except SlideError as error:
        facts["reason"] = " ".join(str(error).split())
        facts["tiles"]["kept"] = 0
        if settings.on_error == "stop":
            raise UserError(
                f"slide {slide_id} ({source}): {facts['reason']}\n"
                "To go on without such slides, set tiles.on_error: record"
            ) from None
        write_records(records, ())
    with write_whole(overview) as temporary:
        picture.save(temporary, "JPEG", quality=OVERVIEW_QUALITY)
    facts["records"] = {"bytes": records.stat().st_size, "sha256": sha256_of(records)}
    facts["settings"] = settings.model_dump()
    write_json(state, facts)
    return facts


def _tiles(
    slide: Slide,
    slide_id: str,
    grid: Grid,
    fractions: np.ndarray,
    kept: np.ndarray,
    quality: int,
) -> Iterator[bytes]:
    for (x, y), tissue in zip(grid.corners()[kept], fractions[kept], strict=True):
        pixels = read_tile(slide, grid, int(x), int(y))
        image = encode_jpeg(pixels, quality)
        yield encode_tile(
            Tile(image, slide_id, int(x), int(y), grid.extent, grid.mpp, float(tissue))
        )


def _overview(slide: Slide, grid: Grid) -> tuple[np.ndarray, tuple[float, float]]:
    wanted = grid.extent / MASK_PIXELS_PER_TILE
    smallest = max(slide.width, slide.height) / MASK_LONGEST
    return slide.overview(max(1.0, wanted, smallest))


def _fit(overview: np.ndarray, downsample: tuple[float, float], slide: Slide) -> Image.Image:
    """Return the overview at no more than `OVERVIEW_LONGEST`, spanning the slide exactly."""
    across, down = downsample
    width = min(slide.width / across, overview.shape[1])
    height = min(slide.height / down, overview.shape[0])
    shrink = min(1, OVERVIEW_LONGEST / max(width, height))
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    return Image.fromarray(overview).resize(
        size, Image.Resampling.BICUBIC, box=(0, 0, width, height)
    )


def _source_facts(source: Path, slide: Slide) -> dict[str, Any]:
    levels = [
        {"width": width, "height": height, "downsample": down}
        for (width, height), down in zip(slide.level_sizes, slide.downsamples, strict=True)
    ]
    values = (
        source.stat().st_size,
        fingerprint(source),
        slide.vendor,
        slide.width,
        slide.height,
        levels,
        slide.objective_power,
    )
    return dict(zip(SOURCE_FACTS, values, strict=True))
