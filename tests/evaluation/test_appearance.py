"""Members that look unlike those of the training are found, and others not more often than said."""

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from gigatile.evaluation.appearance import LEAST, TrainingAppearances, level_of
from gigatile.slides.appearance import AppearanceSum, colour_of
from gigatile.slides.quality import measure

NAMES = ("red", "green", "blue", "contrast", "sharpness")
Draw = Callable[[np.random.Generator, int], np.ndarray]


def members(table: np.ndarray) -> list[dict[str, float]]:
    return [dict(zip(NAMES, row.tolist(), strict=True)) for row in table]


def normal(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.normal(size=(count, len(NAMES)))


def heavy_tailed(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.standard_t(2, size=(count, len(NAMES)))


def correlated(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.cumsum(rng.normal(size=(count, len(NAMES))), axis=1)


def two_sites(rng: np.random.Generator, count: int) -> np.ndarray:
    return normal(rng, count) + 20 * rng.integers(2, size=(count, 1))


@pytest.mark.parametrize("draw", [normal, heavy_tailed, correlated, two_sites])
@pytest.mark.parametrize("count", [10, 30, 120])
def test_one_that_is_drawn_alike_is_rarely_called_unlike(draw: Draw, count: int) -> None:
    rng, repeats = np.random.default_rng(count), 1000
    called = 0
    for _ in range(repeats):
        *others, last = members(draw(rng, count + 1))
        comparison = TrainingAppearances(others).compare(last)
        assert comparison is not None
        called += comparison.is_unlike
    level = level_of(count)
    # Four standard errors.
    assert abs(called / repeats - level) < 4 * (level * (1 - level) / repeats) ** 0.5


def test_another_stain_is_found_with_the_figure_that_differs() -> None:
    table = 100 + 10 * normal(np.random.default_rng(1), 40)
    other = dict(zip(NAMES, (100, 100, 180, 100, 100), strict=True))
    comparison = TrainingAppearances(members(table)).compare(other)
    assert comparison is not None
    assert comparison.is_unlike
    assert comparison.p == 1 / 41
    first = comparison.deviations[0]
    assert (first.name, first.value) == ("blue", 180)
    assert (first.low, first.high) == (table[:, 2].min(), table[:, 2].max())


def test_an_unusual_combination_of_usual_figures_is_found() -> None:
    rng = np.random.default_rng(2)
    table = normal(rng, 60)
    table[:, 1] = table[:, 0] + rng.normal(0, 0.05, 60)
    other = dict(zip(NAMES, (1.5, -1.5, 0, 0, 0), strict=True))
    comparison = TrainingAppearances(members(table)).compare(other)
    assert comparison is not None
    assert comparison.is_unlike


def test_result_depends_on_no_order_and_no_unit() -> None:
    table = normal(np.random.default_rng(3), 25)
    scale, shift = np.array([1e6, 1e-6, 3, 1, 50]), np.array([5, 0, 1e3, 0, 9])
    first = TrainingAppearances(members(table[:-1])).compare(members(table)[-1])
    turned = TrainingAppearances(members(table[:-1][::-1] * scale + shift))
    second = turned.compare(members(table * scale + shift)[-1])
    assert first is not None
    assert second is not None
    assert first.p == second.p
    np.testing.assert_allclose(
        [each.deviations for each in first.deviations],
        [each.deviations for each in second.deviations],
    )


def test_equal_ones_are_like_each_other() -> None:
    same = members(np.full((20, len(NAMES)), 7.3))
    comparison = TrainingAppearances(same[1:]).compare(same[0])
    assert comparison is not None
    assert (comparison.p, comparison.is_unlike) == (1, False)


def test_of_constant_figures_each_other_value_is_unlike() -> None:
    comparison = TrainingAppearances(members(np.full((20, len(NAMES)), 7.3))).compare(
        dict.fromkeys(NAMES, 7.3) | {"red": 7.4}
    )
    assert comparison is not None
    assert comparison.is_unlike


@pytest.mark.parametrize("appearance", [{}, {"other": 1.0}])
def test_without_common_figures_there_is_no_result(appearance: dict[str, float]) -> None:
    trained = TrainingAppearances(members(normal(np.random.default_rng(4), 30)))
    assert trained.compare(appearance) is None


def test_with_few_members_there_is_no_result() -> None:
    table = members(normal(np.random.default_rng(5), LEAST + 1))
    assert TrainingAppearances(table[1:]).compare(table[0]) is not None
    assert TrainingAppearances([*table[2:], {}]).compare(table[0]) is None


def test_missing_channels_are_not_compared() -> None:
    table = members(normal(np.random.default_rng(6), 30))
    without = {name: value for name, value in table[0].items() if name != "red"}
    comparison = TrainingAppearances(table[1:]).compare(without)
    assert comparison is not None
    assert {each.name for each in comparison.deviations} == set(NAMES) - {"red"}
    some = [each if position % 2 else without for position, each in enumerate(table[1:])]
    comparison = TrainingAppearances(some).compare(table[0])
    assert comparison is not None
    assert comparison.compared == 14


def test_members_are_listed_in_an_order_without_meaning() -> None:
    table = members(normal(np.random.default_rng(7), 12))
    assert TrainingAppearances(table).members == TrainingAppearances(table[::-1]).members


def looks_of(images: Iterable[np.ndarray]) -> dict[str, float]:
    total = AppearanceSum()
    for pixels in images:
        total.add(colour_of(pixels), measure(pixels))
    return total.figures()


def unlike(trained: list[dict[str, float]], others: list[dict[str, float]]) -> int:
    comparisons = list(map(TrainingAppearances(trained).compare, others))
    return sum(each is not None and each.is_unlike for each in comparisons)


def test_real_fluorescence_is_unlike_real_stained_tissue(shared_data: Path) -> None:
    folder = shared_data / "nuclei"
    kinds: dict[str, list[dict[str, float]]] = {"tissue": [], "fluorescence": []}
    for image in json.loads((folder / "annotations.json").read_text())["images"]:
        pixels = read_pixels(next(folder.rglob(Path(image["file_name"]).name)))
        kinds[image["kind"]].append(looks_of([pixels]))
    tissue, fluorescence = kinds["tissue"], kinds["fluorescence"]
    assert unlike(tissue, fluorescence) == len(fluorescence) == 178
    assert unlike(fluorescence, tissue) == len(tissue) == 48
    for same in (tissue, fluorescence):
        one_by_one = [
            unlike([*same[:number], *same[number + 1 :]], [each])
            for number, each in enumerate(same)
        ]
        assert sum(one_by_one) <= 3


def test_changed_pictures_of_real_lung_tissue_are_unlike_it(shared_data: Path) -> None:
    """Each set has the tiles of four groups, which are copies of one original."""
    groups: dict[str, list[Path]] = {}
    with (shared_data / "lung/tiles.tsv").open() as file:
        for row in csv.DictReader(file, delimiter="\t"):
            groups.setdefault(row["group"], []).append(shared_data / "lung" / row["file"])
    names = np.random.default_rng(0).permutation(sorted(groups)).tolist()
    sets = [
        [read_pixels(path) for name in names[start : start + 4] for path in groups[name]]
        for start in range(0, len(names) - 3, 4)
    ]
    trained = [looks_of(pixels) for pixels in sets[:60]]

    def changed(change: Callable[[np.ndarray], np.ndarray]) -> int:
        return unlike(trained, [looks_of(map(change, pixels)) for pixels in sets[60:]])

    assert changed(lambda pixels: pixels) <= 2
    assert changed(lambda pixels: cv2.GaussianBlur(pixels, (0, 0), 1)) == 32
    assert changed(lambda pixels: (0.8 * pixels).astype(np.uint8)) == 32


def read_pixels(path: Path) -> np.ndarray:
    return np.array(Image.open(path).convert("RGB"))
