"""The report warns if, and only if, losses depend on the label."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import permutation_test
from slide_runs import CLASSES, Plan, build_run, cohort
from test_index_page import index, section

from gigatile.errors import UserError
from gigatile.report.slides import losses
from gigatile.report.slides.losses import (
    SlideLoss,
    at_edge,
    compare_losses,
    loss_warnings,
    read_loss,
)

LABELS = ("adeno", "normal", "squamous")


def warned(slides: list[SlideLoss]) -> bool:
    return bool(loss_warnings(compare_losses(slides)))


def lung(rng: np.random.Generator, lost_of_normal: float, refused: int) -> list[SlideLoss]:
    """60 patients a label, a third of them with two slides of 8 tiles; losses cluster by patient.

    Args:
        lost_of_normal: expected share of tiles dropped, of the slides that are not refused.
        refused: slides of normal lung of which every tile is dropped.
    """
    slides: list[SlideLoss] = []
    for label in LABELS:
        for number in range(60):
            normal = label == "normal"
            own = rng.beta(2 * lost_of_normal, 2 * (1 - lost_of_normal)) if normal else 0.0
            for _ in range(1 + (number % 3 == 0)):
                name, gone = f"{label}-{len(slides)}", normal and len(slides) < 80 + refused
                dropped = 8 if gone else int(rng.binomial(8, own))
                slides.append(SlideLoss(name, f"{label}-{number}", label, gone, 8, dropped, 8))
    return slides


@pytest.mark.parametrize(("share", "refused"), [(43 / 635, 0), (11 / 603, 4)])
def test_loss_of_normal_lung_raises_a_warning(
    share: float, refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 43 of 635 tiles of normal lung, with and without 4 slides refused; nothing of the tumours.
    monkeypatch.setattr(losses, "PERMUTATIONS", 399)
    rng = np.random.default_rng(1)
    assert sum(warned(lung(rng, share, refused)) for _ in range(20)) >= 18


@pytest.mark.parametrize("patients", [5, 12])
def test_independent_losses_rarely_raise_a_warning(
    patients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "PERMUTATIONS", 199)
    monkeypatch.setattr(losses, "LEAST_DIFFERENCE", 0.0)  # the test alone
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(200):
        slides = []
        for label in LABELS:
            for number in range(patients):
                own = rng.beta(0.1, 0.9)
                for slide in range(int(rng.integers(1, 4))):
                    tiles = int(rng.integers(5, 200))
                    dropped = int(rng.binomial(tiles, own))
                    name = f"{label}{number}-{slide}"
                    refused = bool(rng.random() < own)
                    slides.append(
                        SlideLoss(name, f"{label}{number}", label, refused, tiles, dropped, 0)
                    )
        alarms += warned(slides)
    assert alarms <= 18  # 5 % of 200 are 10; more than 18 come by chance once in 200


def specimen(rng: np.random.Generator, wide: int, high: int, margin: int) -> np.ndarray:
    """Share of tissue of each tile: a rectangle at some place on glass, in tiles."""
    top, left = margin + rng.random(), margin + rng.random()

    def covered(first: float, length: int, count: int) -> np.ndarray:
        start = np.arange(count)
        return np.clip(np.minimum(start + 1, first + length) - np.maximum(start, first), 0, 1)

    rows = covered(top, high, high + 2 * margin + 2)
    return np.outer(rows, covered(left, wide, wide + 2 * margin + 2))


def write_tiles(path: Path, tissue: np.ndarray, limit: float = 0.5) -> None:
    reasons = np.where(tissue.ravel() < limit, "background", "")
    table = {"tissue": tissue.ravel().astype(np.float32), "dropped": reasons.tolist()}
    pq.write_table(pa.table(table), path)


@pytest.mark.parametrize("biopsy", [(5, 40, 3), (20, 20, 30)], ids=["thin", "on much glass"])
def test_small_biopsies_are_not_a_loss(tmp_path: Path, biopsy: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(4)
    slides = []
    for label, shape in (("benign", biopsy), ("cancer", (40, 50, 2))):
        for number in range(20):
            tissue = specimen(rng, *shape)
            write_tiles(tmp_path / "one.parquet", tissue)
            columns = tissue.shape[1]
            name = f"{label}{number}"
            slides.append(read_loss(tmp_path / "one.parquet", name, name, label, False, columns))
    assert not warned(slides)
    # The same biopsies with a hole of thin tissue are.
    holed = [
        SlideLoss(
            **{
                **vars(slide),
                "dropped": slide.dropped + (slide.holding // 8 if "b" in slide.slide else 0),
            }
        )
        for slide in slides
    ]
    assert warned(holed)


@pytest.mark.parametrize(("rim", "warns"), [(0.06, False), (0.2, True)])
def test_rim_of_a_neighbouring_tile_is_not_a_loss(tmp_path: Path, rim: float, warns: bool) -> None:
    """Tumours fill their tiles to the border and a little beyond; thin normal lung does not."""
    slides = []
    for label, outside in (("normal", 0.0), ("tumour", rim)):
        for number in range(20):
            tissue = np.full((5, 5), outside)
            tissue[1:4, 1 + number % 2 : 4] = 0.9
            write_tiles(tmp_path / "one.parquet", tissue)
            name = f"{label}{number}"
            slides.append(read_loss(tmp_path / "one.parquet", name, name, label, False, 5))
    assert warned(slides) == warns


def test_edge_tiles_have_a_neighbour_without_tissue() -> None:
    holding = np.array([[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0]], bool)
    assert at_edge(holding).tolist() == [[False, False, True, False]] * 3


def test_only_tiles_with_tissue_are_lost(tmp_path: Path) -> None:
    table = {"tissue": [0.0, 0.3, 0.9, 0.9], "dropped": ["background", "background", "blur", ""]}
    pq.write_table(pa.table(table), tmp_path / "one.parquet")
    loss = read_loss(tmp_path / "one.parquet", "S1", "P1", "a", False, 2)
    assert (loss.holding, loss.dropped) == (3, 2)
    with pytest.raises(UserError, match="do not fill rows of 3"):
        read_loss(tmp_path / "one.parquet", "S1", "P1", "a", False, 3)
    # A slide that could not be read lost no tile to its looks.
    assert read_loss(tmp_path / "one.parquet", "S1", "P1", "a", True, 2).holding == 0


def test_p_value_is_that_of_scipy() -> None:
    values = np.array([0.3, 0.2, 0.4, 0.1, 0.25, 0.0, 0.05, 0.0, 0.15, 0.0, 0.3])
    labels = np.repeat([0, 1], [5, 6])

    def between(sample: np.ndarray, other: np.ndarray) -> float:
        middle = np.concatenate([sample, other]).mean()
        return sum(len(v) * (v.mean() - middle) ** 2 for v in (sample, other))

    exact = permutation_test((values[:5], values[5:]), between, alternative="greater").pvalue
    p = losses.permutation_p_value(values, labels, np.zeros(11, np.int64), "tiles")
    assert abs(p - exact) < 0.02
    assert p == losses.permutation_p_value(values, labels, np.zeros(11, np.int64), "tiles")


def test_labels_are_permuted_within_the_patient() -> None:
    slides = []
    for number in range(10):
        for label, dropped in (("normal", 20 + number), ("tumour", 10 + number)):
            slides.append(SlideLoss(f"{label}{number}", f"P{number}", label, False, 100, dropped))
    tiles = compare_losses(slides)[1]
    # Only 2 of 2 ** 10 arrangements are as uneven.
    assert tiles.warns and tiles.p is not None and tiles.p < 0.01


def test_few_patients_or_small_differences_do_not_warn() -> None:
    few = [SlideLoss(f"a{n}", f"a{n}", "a", False, 100, 90) for n in range(4)]
    many = [SlideLoss(f"b{n}", f"b{n}", "b", False, 100, 0) for n in range(50)]
    assert compare_losses(few + many)[1].p is None
    small = [SlideLoss(f"a{n}", f"a{n}", "a", False, 100, 1) for n in range(50)]
    test = compare_losses(small + many)[1]
    assert test.p is not None and test.p < 0.01 and not test.warns
    assert [test.p for test in compare_losses([])] == [None, None]


def planted(tmp_path: Path, lost: bool) -> Path:
    run = build_run(tmp_path / "demo", cohort())
    for path in sorted((run / "tiles").glob("S*.parquet")):
        table = pq.read_table(path)
        dropped = np.array([bool(reasons) for reasons in table["dropped"].to_pylist()])
        # Of normal lung the tiles that are dropped have a little tissue, elsewhere they are glass.
        thin = 0.2 if lost and path.name[1] == "1" else 0.0
        tissue = pa.array(np.where(dropped, thin, 0.9).astype(np.float32))
        column = table.schema.get_field_index("tissue")
        pq.write_table(table.set_column(column, "tissue", tissue), path)
    return run


def test_report_warns_and_lists_every_label(tmp_path: Path) -> None:
    page = index(planted(tmp_path, lost=True))
    assert "Missing data depends on the label." in page.text
    assert "Tiles with tissue are dropped more often for some labels than for others: normal" in (
        page.text
    )
    assert page.html.count('class="banner"') == 1
    assert "Tiles with tissue dropped" in section(page, "left-out")


def test_report_does_not_warn_of_lost_glass(tmp_path: Path) -> None:
    page = index(planted(tmp_path, lost=False))
    assert 'class="banner"' not in page.html
    assert "Slides refused 1 of 7" in section(page, "left-out")


def test_report_shows_too_few_patients(tmp_path: Path) -> None:
    plans = [plan for plan in cohort() if not plan.slide.startswith("S") or plan.slide[2] != "0"]
    assert isinstance(plans[0], Plan) and len(CLASSES) == 3
    page = index(build_run(tmp_path / "demo", plans))
    assert section(page, "left-out").count("too few patients") == 2
