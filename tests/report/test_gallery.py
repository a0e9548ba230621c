import base64
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from slide_runs import Plan, build_run, cohort, jpeg
from test_self_contained import Page
from written import write_slides

from gigatile.errors import UserError
from gigatile.records import Tile, encode_tile, write_records
from gigatile.report.slides import gallery
from gigatile.report.slides.inputs import TileScores


def record(x: int, image: bytes) -> bytes:
    return encode_tile(Tile(image, "S1", x, 0, 32.0, 0.5, 0.9))


def test_highest_scores_are_first() -> None:
    scores = np.array([[0.2], [0.9], [0.5], [0.9], [0.1]])
    tiles = TileScores(np.arange(5), np.zeros(5, int), scores)
    assert gallery.highest(tiles, 0, 3) == [1, 3, 2]
    assert gallery.highest(tiles, 0, 99) == [1, 3, 2, 0, 4]


def test_pick_returns_the_wanted_tiles(tmp_path: Path) -> None:
    images = {x: jpeg(np.full((32, 32, 3), x, np.uint8)) for x in range(0, 200, 10)}
    write_records(tmp_path / "S1.tfrecord", (record(x, image) for x, image in images.items()))
    tiles = gallery.pick(tmp_path / "S1.tfrecord", {(150, 0), (30, 0)})
    assert tiles == {(150, 0): images[150], (30, 0): images[30]}


def test_missing_tile_is_named(tmp_path: Path) -> None:
    write_records(tmp_path / "S1.tfrecord", [record(0, jpeg(np.zeros((32, 32, 3), np.uint8)))])
    with pytest.raises(UserError, match=r"S1\.tfrecord: no tile at \(32, 0\)"):
        gallery.pick(tmp_path / "S1.tfrecord", {(32, 0)})


def test_record_of_another_kind_is_named(tmp_path: Path) -> None:
    write_records(tmp_path / "S1.tfrecord", [b"no example at all"])
    with pytest.raises(UserError, match=r"S1\.tfrecord: record 1: the record is not a tile"):
        gallery.pick(tmp_path / "S1.tfrecord", {(32, 0)})


def test_damaged_jpeg_is_named(tmp_path: Path) -> None:
    image = jpeg(np.random.default_rng(1).integers(0, 255, (64, 64, 3)).astype(np.uint8))
    write_records(tmp_path / "S1.tfrecord", [record(0, image[: len(image) // 2])])
    with pytest.raises(UserError, match=r"S1\.tfrecord: contains a damaged JPEG"):
        gallery.pick(tmp_path / "S1.tfrecord", {(0, 0)})


@pytest.mark.parametrize("side", [64, 512, 1500])
def test_large_images_are_scaled_down(side: int) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (side, side, 3)).astype(np.uint8)
    data = jpeg(noise)
    scaled = gallery.smaller(data, 30_000, Path("S1.jpg"))
    assert len(scaled) <= 30_000
    assert (scaled == data) == (len(data) <= 30_000)


def test_memory_does_not_grow_with_tiles(tmp_path: Path) -> None:
    image = np.random.default_rng(1).bytes(20_000)
    good = jpeg(np.zeros((32, 32, 3), np.uint8))
    records = (record(x, image if x < 2000 else good) for x in range(2001))
    write_records(tmp_path / "S1.tfrecord", records)  # 40 MB
    tracemalloc.start()
    gallery.pick(tmp_path / "S1.tfrecord", {(2000, 0)})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


def test_page_of_10000_tiles_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [plan for plan in cohort() if plan.slide != "S03"]
    plans.append(Plan("S03", "P03", "adeno", "test", columns=115, rows=115))
    run = build_run(tmp_path / "demo", plans)
    # An overview of noise: no JPEG is larger.
    width, height = 115 * 32 + 9, 115 * 32 + 17
    shape = (2048 * width // height, 2048)
    noise = np.random.default_rng(1).integers(0, 255, (2048, shape[0], 3)).astype(np.uint8)
    (run / "tiles/S03.jpg").write_bytes(jpeg(noise))
    write_slides(run, run / "report")
    page = Page(run / "report/slides/S03.html")
    kept = int(page.text.partition("Kept ")[2].split()[0].replace(",", ""))
    assert kept > 10_000
    assert len(page.html.encode()) < 3_000_000
    assert len([a for a in page.all("img") if a["alt"].startswith("Tile ")]) == 24


def test_shown_tiles_are_the_bytes_of_the_records(run: Path) -> None:
    from gigatile.records import decode_tile, read_records

    write_slides(run, run / "report")
    page = Page(run / "report/slides/S03b.html")
    stored = {decode_tile(data).image for data in read_records(run / "tiles/S03b.tfrecord")}
    shown = [a["src"] for a in page.all("img") if a["alt"].startswith("Tile ")]
    assert len(shown) == 24
    assert {base64.b64decode(src.partition(",")[2]) for src in shown} <= stored
