import csv
import json
from typing import get_args

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from known_slides import GLASS
from PIL import Image

from gigatile.settings.tiles import StainMethod
from gigatile.slides.stain import METHODS, REFERENCE, Normaliser, Stain, StainError, fit

TILES = npst.arrays(
    np.uint8, npst.array_shapes(min_dims=2, max_dims=2, max_side=7).map(lambda s: (*s, 3))
)
RGB_TO_LMS = np.array(
    [[0.3811, 0.5783, 0.0402], [0.1967, 0.7244, 0.0782], [0.0241, 0.1288, 0.8444]]
)
LMS_TO_LAB = np.diag([3**-0.5, 6**-0.5, 2**-0.5]) @ [[1, 1, 1], [1, 1, -2], [1, -1, 0]]


@st.composite
def macenko_stains(draw) -> Stain:
    """Draw realistic vectors of haematoxylin and eosin, 14° to 50° apart."""
    ranges = [[(0.5, 0.7), (0.6, 0.8), (0.2, 0.5)], [(0.22, 0.35), (0.8, 0.95), (0.3, 0.6)]]
    vectors = np.array([[draw(st.floats(*ends)) for ends in vector] for vector in ranges])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    strengths = [draw(st.floats(1.6, 2.5)) for _ in range(2)]
    return Stain("macenko", {"vectors": vectors.tolist(), "strengths": strengths})


@st.composite
def reinhard_stains(draw) -> Stain:
    mean = [draw(st.floats(*ends)) for ends in [(8.2, 9.1), (-0.5, 0.1), (-0.02, 0.06)]]
    deviation = [draw(st.floats(*ends)) for ends in [(0.15, 0.9), (0.06, 0.4), (0.004, 0.07)]]
    return Stain("reinhard", {"mean": mean, "deviation": deviation})


PAIRS = st.one_of(st.tuples(stains(), stains()) for stains in (macenko_stains, reinhard_stains))


def amounts(seed: int = 0) -> np.ndarray:
    """Return the relative amounts of haematoxylin and eosin of each pixel: (6000, 2)."""
    random = np.random.default_rng(seed)
    fraction = np.repeat([0, 1, 0], 2000) + np.repeat([0, 0, 1], 2000) * random.random(6000)
    return random.uniform(0.5, 1, (6000, 1)) * np.column_stack([fraction, 1 - fraction])


def stained(stain: Stain, amount: np.ndarray) -> np.ndarray:
    """Return pixels with these amounts of stain, (n, 3) uint8, by the Beer-Lambert law."""
    density = (amount * stain.values["strengths"]) @ np.array(stain.values["vectors"])
    return np.rint(240 * np.exp(-density) - 1).clip(0, 255).astype(np.uint8)


def angles(first: Stain, second: Stain) -> np.ndarray:
    """Return the angle in degrees between the corresponding vectors of two stains."""
    cosines = np.sum(np.multiply(first.values["vectors"], second.values["vectors"]), axis=1)
    return np.degrees(np.arccos(cosines.clip(-1, 1)))


def uniform(*colour: int, height: int = 5, width: int = 4) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def difference(first: np.ndarray, second: np.ndarray) -> int:
    return int(abs(first.astype(int) - second).max())


# --- Fitting a stain


@given(macenko_stains(), st.integers(0, 5))
def test_two_known_stains_are_estimated(stain, seed):
    amount = amounts(seed)
    estimate = fit("macenko", stained(stain, amount))
    assert angles(estimate, stain).max() < 1
    strengths = np.percentile(amount, 99, axis=0) * stain.values["strengths"]
    np.testing.assert_allclose(estimate.values["strengths"], strengths, rtol=0.05)


def test_reinhard_estimates_mean_and_deviation():
    pixels = stained(REFERENCE["macenko"], amounts())
    colours = np.log((pixels + 1.0) @ RGB_TO_LMS.T) @ LMS_TO_LAB.T
    estimate = fit("reinhard", np.vstack([pixels, uniform(*GLASS, height=900).reshape(-1, 3)]))
    np.testing.assert_allclose(estimate.values["mean"], colours.mean(axis=0), atol=1e-8)
    np.testing.assert_allclose(estimate.values["deviation"], colours.std(axis=0), atol=1e-8)


@pytest.mark.parametrize("method", METHODS)
def test_order_of_pixels_and_glass_have_no_effect(method):
    pixels = stained(REFERENCE["macenko"], amounts())
    stain = fit(method, pixels)
    glass = np.random.default_rng(1).integers(225, 256, (50_000, 3)).astype(np.uint8)
    for seed in range(10):
        mixed = np.random.default_rng(seed).permutation(np.vstack([pixels, glass]))
        assert fit(method, mixed) == stain


def test_stains_do_not_emit_light():
    """For a mixture of three colours, the best two stains would have negative absorption of red."""
    fraction = np.random.default_rng(0).dirichlet([1, 1, 1], 4000) ** 2
    colours = np.array([[105, 175, 118], [190, 17, 11], [146, 32, 174]])
    density = fraction / fraction.sum(axis=1, keepdims=True) @ -np.log((colours + 1) / 240)
    vectors = np.array(
        fit("macenko", (240 * np.exp(-density) - 1).astype(np.uint8)).values["vectors"]
    )
    assert vectors.min() == 0
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)


NOISY = np.random.default_rng(2).integers(-2, 3, (6000, 3))


@pytest.mark.parametrize(
    ("method", "pixels", "reason"),
    [
        ("macenko", uniform(*GLASS, height=900), r"too little stain: 0 of 3,600 pixels .* 1,000 "),
        ("reinhard", uniform(*GLASS, height=900), r"too little stain: 0 of 3,600 pixels .* 1,000 "),
        ("macenko", uniform(100, 50, 90, width=3), "too little stain: 15 of 15 pixels"),
        ("reinhard", uniform(100, 50, 90, width=3), "too little stain: 15 of 15 pixels"),
        ("macenko", uniform(0, 0, 0)[:0], "too little stain: 0 of 0 pixels"),
        ("reinhard", uniform(0, 0, 0)[:0], "too little stain: 0 of 0 pixels"),
        (
            "macenko",
            uniform(0, 0, 0, height=900),
            r"only one stain: .* 0\.0° apart, but must be at least 6°",
        ),
        ("macenko", uniform(90, 40, 80, height=900), r"only one stain: .* 0\.0° apart"),
        ("reinhard", uniform(90, 40, 80, height=900), "only one colour"),
        (
            "macenko",
            stained(REFERENCE["macenko"], amounts() * [1, 0] + [0.3, 0]) + NOISY,
            r"only one stain: .* [1-5]\.\d° apart",
        ),
        (
            "macenko",
            stained(REFERENCE["macenko"], amounts() * [0, 2] + [0, 0.3]) + NOISY,
            r"only one stain: .* [1-5]\.\d° apart",
        ),
        (
            "macenko",
            np.repeat([[40, 160, 160], [160, 40, 160], [160, 160, 40]], 900, axis=0),
            "not mixtures of two stains",
        ),
    ],
)
def test_pixels_without_a_stain_are_refused(method, pixels, reason):
    with pytest.raises(StainError, match=reason) as refusal:
        fit(method, pixels.clip(0, 255).astype(np.uint8).reshape(-1, 3))
    assert "\n" not in str(refusal.value)


@given(npst.arrays(np.uint8, (1200, 3), elements=st.integers(0, 255), fill=st.integers(0, 255)))
def test_any_pixels_give_a_valid_stain_or_a_reason(pixels):
    for method in METHODS:
        try:
            stain = fit(method, pixels)
        except StainError:
            continue
        assert Stain.from_dict(stain.as_dict()) == stain


@pytest.mark.parametrize(
    ("method", "pixels", "fault"),
    [
        (
            "vahadane",
            np.zeros((9, 3), np.uint8),
            "unknown method 'vahadane'; must be macenko or rei",
        ),
        (
            "macenko",
            np.zeros((9, 4), np.uint8),
            r"pixels must be \(n, 3\) uint8, found \(9, 4\) uint8",
        ),
        ("macenko", np.zeros((9, 9, 3), np.uint8), r"found \(9, 9, 3\) uint8"),
        ("reinhard", np.zeros((9, 3)), r"found \(9, 3\) float64"),
    ],
)
def test_wrong_arrays_are_refused(method, pixels, fault):
    with pytest.raises(ValueError, match=fault):
        fit(method, pixels)


# --- Serialisation


@given(st.one_of(macenko_stains(), reinhard_stains()))
def test_stain_survives_json(stain):
    assert Stain.from_dict(json.loads(json.dumps(stain.as_dict()))) == stain


HE = REFERENCE["macenko"].as_dict()
LAB = REFERENCE["reinhard"].as_dict()


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (None, "a stain must be a mapping with a method, found None"),
        ({"mean": [1, 2, 3]}, "a mapping with a method"),
        ({**HE, "method": "vahadane"}, "unknown method 'vahadane'"),
        ({**HE, "method": ["macenko"]}, "unknown method"),
        ({"method": "macenko"}, r"must have vectors and strengths, found \[\]"),
        ({**LAB, "vectors": HE["vectors"]}, "must have mean and deviation, found .*'vectors'"),
        (
            {**HE, "strengths": [1, 2, 3]},
            r"strengths .* must be 2 finite numbers, found \[1, 2, 3\]",
        ),
        ({**HE, "vectors": [[1, 0, 0], [0, 1]]}, r"vectors .* must be 2×3 finite numbers"),
        ({**HE, "strengths": None}, "2 finite numbers, found None"),
        ({**HE, "strengths": ["1.9", 1]}, "finite numbers"),
        ({**HE, "strengths": [True, 1]}, "finite numbers"),
        ({**LAB, "mean": [8.7, float("nan"), 0]}, "finite numbers"),
        ({**LAB, "mean": [8.7, float("-inf"), 0]}, "finite numbers"),
        ({**LAB, "mean": [10**400, 0, 0]}, "finite numbers"),
        (
            {**LAB, "deviation": [0.6, 0.1, 0]},
            "deviations of l, alpha and beta are .* at least 0.001",
        ),
        ({**LAB, "deviation": [0.6, -0.1, 0.1]}, "deviations of l, alpha and beta"),
        ({**HE, "vectors": [[1, 1, 1], HE["vectors"][1]]}, "unit length"),
        ({**HE, "vectors": [[0.8, -0.6, 0], [0, 1, 0]]}, "no negative part"),
        ({**HE, "vectors": HE["vectors"][:1] * 2}, r"only one stain: .* 0\.\d° apart"),
        (
            {**HE, "vectors": HE["vectors"][::-1]},
            "haematoxylin, which absorbs more red, must come fi",
        ),
        ({**HE, "strengths": [1.9, 0]}, "stain strengths must be at least 0.01, found"),
    ],
)
def test_invalid_stain_is_refused(data, fault):
    with pytest.raises(ValueError, match=fault):
        Stain.from_dict(data)


def test_references_equal_the_published_numbers():
    assert list(REFERENCE) == list(METHODS)
    assert np.transpose(HE["vectors"]).ravel().tolist() == [
        *(0.5626, 0.2159, 0.7201, 0.8012, 0.4062, 0.5581)
    ]
    assert HE["strengths"] == [1.9705, 1.0308]
    assert LAB["mean"] == [8.74108109, -0.12440419, 0.0444982]
    assert LAB["deviation"] == [0.6135447, 0.10989545, 0.0286032]


# --- Normalising tiles


@given(macenko_stains(), macenko_stains())
def test_macenko_gives_the_target_stain(original, reference):
    amount = amounts()
    before, wanted = (stained(stain, amount)[None] for stain in (original, reference))
    source, target = fit("macenko", before[0]), fit("macenko", wanted[0])
    assert difference(Normaliser(original, reference)(before), wanted) <= 8
    assert difference(Normaliser(source, target)(before), wanted) <= 12
    assert abs(Normaliser(source, target)(before).astype(int) - wanted).mean() < 2


def test_reinhard_gives_the_targets_mean_and_deviation():
    wanted = stained(REFERENCE["macenko"], amounts() * [0.5, 0.6] + [0.2, 0.2])[None]
    colours = np.log((wanted + 1.0) @ RGB_TO_LMS.T) @ LMS_TO_LAB.T * [0.9, 1.1, 0.9] + [0, -0.05, 0]
    cones = np.exp(colours @ np.linalg.inv(LMS_TO_LAB).T)
    before = np.rint(cones @ np.linalg.inv(RGB_TO_LMS).T - 1)
    assert before.min() > 0
    assert before.max() < 250
    before = before.astype(np.uint8)
    assert difference(before, wanted) > 25
    source, target = fit("reinhard", before[0]), fit("reinhard", wanted[0])
    assert difference(Normaliser(source, target)(before), wanted) <= 4


@given(st.data())
def test_normalising_to_the_same_stain_changes_nothing(data):
    stain = data.draw(macenko_stains())
    picture = stained(stain, amounts())[None]
    for source in (stain, fit("macenko", picture[0])):
        same = Normaliser(source, source)(picture)
        assert difference(same, picture) <= 4
        assert abs(same.astype(int) - picture).mean() < 0.6
    stain, tile = data.draw(reinhard_stains()), data.draw(TILES)
    assert np.array_equal(Normaliser(stain, stain)(tile), tile)


def normalise_exactly(source: Stain, target: Stain, tile: np.ndarray) -> np.ndarray:
    """Normalise with the papers' formulas in double precision: (height, width, 3), unrounded."""
    density = -np.log((tile + 1.0) / 240)
    if source.method == "macenko":
        unmix = np.linalg.pinv(source.values["vectors"])
        gain = np.divide(target.values["strengths"], source.values["strengths"])
        mixed = (density.clip(0) @ unmix * gain).clip(0) @ np.array(target.values["vectors"])
        return (240 * np.exp(-mixed) - 1 + (tile - 239.0).clip(0)).clip(0, 255)
    colours = np.log((tile + 1.0) @ RGB_TO_LMS.T) @ LMS_TO_LAB.T
    colours = (colours - source.values["mean"]) / source.values["deviation"]
    colours = colours * target.values["deviation"] + target.values["mean"]
    cones = np.exp((colours @ np.linalg.inv(LMS_TO_LAB).T).clip(None, 11.09))
    changed = (cones @ np.linalg.inv(RGB_TO_LMS).T - 1).clip(0, 255)
    fraction = (density.max(axis=2, keepdims=True) / 0.15).clip(0, 1)
    fraction = fraction * fraction * (3 - 2 * fraction)
    return (1 - fraction) * tile + fraction * changed


@given(PAIRS, TILES)
def test_pixels_follow_the_formulas(pair, tile):
    normalised = Normaliser(*pair)(tile)
    assert (normalised.shape, normalised.dtype) == (tile.shape, np.uint8)
    assert abs(normalise_exactly(*pair, tile) - normalised).max() <= 0.6


def test_extreme_stains_do_not_overflow():
    colours = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    flat = Stain("reinhard", {"mean": [9, 0, 0], "deviation": [0.001] * 3})
    wide = Stain("reinhard", {"mean": [9, 0, 0], "deviation": [5, 5, 5]})
    faint = Stain("macenko", {**REFERENCE["macenko"].values, "strengths": [0.01, 0.01]})
    for pair in [(flat, wide), (faint, REFERENCE["macenko"]), (REFERENCE["macenko"], faint)]:
        exact = normalise_exactly(*pair, colours)
        # At these gains, single precision is inaccurate for pixels between black and white.
        extreme = (exact <= 0) | (exact >= 238)
        assert extreme.mean() > 0.2
        assert difference(Normaliser(*pair)(colours)[extreme], exact[extreme]) <= 1


@given(PAIRS)
def test_glass_stays_glass(pair):
    normaliser = Normaliser(*pair)
    bright = np.random.default_rng(0).integers(239, 256, (40, 40, 3)).astype(np.uint8)
    for tile in (uniform(*GLASS), uniform(255, 255, 255), uniform(239, 239, 239), bright):
        assert np.array_equal(normaliser(tile), tile)
    # Slightly darker glass changes little.
    assert difference(normaliser(uniform(236, 236, 236)), uniform(236, 236, 236)) <= 12


@given(st.one_of(macenko_stains(), reinhard_stains()))
def test_black_stays_dark_and_uniform_tiles_stay_uniform(source):
    normaliser = Normaliser(source, REFERENCE[source.method])
    assert normaliser(uniform(0, 0, 0)).max() <= 64
    for colour in [(0, 0, 0), (128, 128, 128), (190, 110, 160), (255, 0, 0), (0, 255, 255)]:
        tile = normaliser(uniform(*colour))
        assert np.array_equal(tile, np.broadcast_to(tile[0, 0], tile.shape))


@pytest.mark.parametrize("method", METHODS)
def test_smooth_gradient_gets_no_edge(method):
    """A gradient from glass to stain, of at most one grey level per pixel, stays smooth."""
    source = fit(method, stained(REFERENCE["macenko"], amounts() * [0.6, 1.3]))
    fade = np.rint(np.linspace([250, 250, 250], [170, 110, 180], 141)).astype(np.uint8)[None]
    result = Normaliser(source, REFERENCE[method])(fade)
    assert difference(result, fade) > 25
    assert abs(np.diff(result[0].astype(int), axis=0)).max() <= 6


@pytest.mark.parametrize("shape", [(0, 0, 3), (0, 5, 3), (5, 0, 3), (1, 1, 3), (3, 70_000, 3)])
@pytest.mark.parametrize("method", METHODS)
def test_tiles_of_any_size_are_normalised(method, shape):
    tile = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    normaliser = Normaliser(REFERENCE[method], REFERENCE[method])
    assert normaliser(tile).shape == shape


@pytest.mark.parametrize("method", METHODS)
def test_result_depends_only_on_the_pixel(method):
    """Threads, neighbouring pixels and memory layout have no effect."""
    source = fit(method, stained(REFERENCE["macenko"], amounts() * [0.7, 1.3]))
    normaliser = Normaliser(source, REFERENCE[method])
    tile = np.random.default_rng(0).integers(0, 256, (1001, 1517, 3)).astype(np.uint8)
    original = tile.copy()
    threads = cv2.getNumThreads()
    try:
        cv2.setNumThreads(1)
        alone = normaliser(tile)
        cv2.setNumThreads(4)
        assert np.array_equal(normaliser(tile), alone)
    finally:
        cv2.setNumThreads(threads)
    assert np.array_equal(tile, original)
    assert np.array_equal(normaliser(tile[7:-9, 11:-6]), alone[7:-9, 11:-6])
    rows = np.array([normaliser(row[None])[0] for row in tile[:, :5]])
    assert np.array_equal(rows, alone[:, :5])
    assert np.array_equal(normaliser(tile[::-3, ::2]), alone[::-3, ::2])
    tile.flags.writeable = False
    assert np.array_equal(normaliser(tile), alone)


def test_normaliser_refuses_wrong_arrays():
    with pytest.raises(ValueError, match="cannot normalise a macenko stain to a reinhard stain"):
        Normaliser(REFERENCE["macenko"], REFERENCE["reinhard"])
    normaliser = Normaliser(REFERENCE["macenko"], REFERENCE["macenko"])
    with pytest.raises(ValueError, match=r"must be \(height, width, 3\) uint8, found \(5, 5, 4\)"):
        normaliser(np.zeros((5, 5, 4), np.uint8))
    with pytest.raises(ValueError, match="float32"):
        normaliser(np.zeros((5, 5, 3), np.float32))


# --- Real tissue


@pytest.fixture(scope="module")
def lung(shared_data) -> list[np.ndarray]:
    """A tile of every fifth group: real tissue with many stains."""
    with (shared_data / "lung/tiles.tsv").open() as sheet:
        first = {
            row["group"]: row["file"] for row in reversed([*csv.DictReader(sheet, delimiter="\t")])
        }
    tiles = []
    for group in sorted(first)[::5]:
        with Image.open(shared_data / "lung" / first[group]) as picture:
            tiles.append(np.asarray(picture.convert("RGB")))
    return tiles


def published_vectors(pixels: np.ndarray) -> np.ndarray:
    """Estimate haematoxylin and eosin like Macenko 2009 and the published code, step by step."""
    density = -np.log((pixels.astype(float) + 1) / 240)
    density = density[~(density < 0.15).any(axis=1)]
    vectors = np.linalg.eigh(np.cov(density, rowvar=False))[1][:, [1, 2]]
    vectors *= np.sign(vectors.sum(axis=0))  # so that the angle, from -π to π, does not wrap around
    projected = density @ vectors
    phi = np.arctan2(projected[:, 1], projected[:, 0])
    ends = [vectors @ [np.cos(end), np.sin(end)] for end in np.percentile(phi, [1, 99])]
    return np.array(sorted(ends, key=lambda end: -end[0]))


def test_real_stains_equal_the_published_code(lung):
    fitted = 0
    for tile in lung:
        pixels = tile.reshape(-1, 3)
        try:
            vectors = fit("macenko", pixels).values["vectors"]
        except StainError as error:
            assert "too little stain" in str(error)
            continue
        fitted += 1
        np.testing.assert_allclose(vectors, published_vectors(pixels), atol=1e-6)
    assert fitted > 0.9 * len(lung)


def mean_colour(tile: np.ndarray) -> np.ndarray:
    return tile.mean(axis=(0, 1))


def chromaticity(tile: np.ndarray) -> np.ndarray:
    """Return the mean colour without its brightness, which depends on the amount of tissue."""
    return mean_colour(tile) / mean_colour(tile).sum()


@pytest.mark.parametrize("method", METHODS)
def test_normalised_real_tiles_are_more_similar(lung, method):
    before, after = [], []
    for tile in lung:
        try:
            source = fit(method, tile.reshape(-1, 3))
        except StainError:
            continue
        before.append(tile)
        after.append(Normaliser(source, REFERENCE[method])(tile))

    def spread(tiles: list[np.ndarray], colour) -> float:
        return float(np.sqrt(np.var([colour(tile) for tile in tiles], axis=0).sum()))

    limits = {"macenko": (0.97, 0.4), "reinhard": (0.25, 0.15)}[method]
    assert spread(after, mean_colour) < limits[0] * spread(before, mean_colour)
    assert spread(after, chromaticity) < limits[1] * spread(before, chromaticity)


def test_settings_list_all_methods():
    assert get_args(StainMethod) == ("off", *METHODS)
