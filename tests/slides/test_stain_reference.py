"""Stain normalisation while tiling."""

import json

import numpy as np
import pytest
import tifffile
from known_slides import GLASS, glass, write_svs

from gigatile.records.tile import encode_jpeg
from gigatile.settings.tiles import TileSettings
from gigatile.slides.stain import REFERENCE, Normaliser, Stain

# Optical densities of two stains, and of the same stains from another laboratory.
STAINS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11]])
OTHERS = np.array([[0.55, 0.75, 0.36], [0.20, 0.95, 0.22]])


def stained(vectors: np.ndarray, strength: float, height: int = 256, width: int = 384):
    """Return random amounts of two stains; the right third is glass."""
    amounts = np.random.default_rng(3).gamma(2.0, strength / 2, (height, width, 2))
    pixels = np.clip(240 * np.exp(-amounts @ vectors), 0, 255).astype(np.uint8)
    pixels[:, 2 * width // 3 :] = GLASS
    return pixels


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stained")
    return [
        write_svs(folder / "first.svs", stained(STAINS, 0.5)),
        write_svs(folder / "second.svs", stained(OTHERS, 0.8)),
    ]


def mean_colour(outcome) -> np.ndarray:
    return np.mean([record.pixels().mean(axis=(0, 1)) for record in outcome.tiles], axis=0)


@pytest.mark.parametrize("method", ["macenko", "reinhard"])
def test_normalised_slides_are_more_similar(slides, tile, method):
    plain = [tile(path, folder=f"plain{n}", quality=100) for n, path in enumerate(slides)]
    normal = [
        tile(path, folder=f"normal{n}", quality=100, stain=method) for n, path in enumerate(slides)
    ]
    before = np.abs(mean_colour(plain[0]) - mean_colour(plain[1])).max()
    after = np.abs(mean_colour(normal[0]) - mean_colour(normal[1])).max()
    assert before > 25
    assert after < before / 4
    for outcome in normal:
        state = outcome.state["stain"]
        assert state["why_not"] is None
        assert state["target"] == REFERENCE[method].as_dict()
        assert Stain.from_dict(state["source"]).method == method


def test_tiles_follow_the_normalisation_in_the_state(slides, tile):
    normal = tile(slides[0], stain="macenko")
    state = normal.state["stain"]
    normaliser = Normaliser(Stain.from_dict(state["source"]), Stain.from_dict(state["target"]))
    pixels = tifffile.imread(slides[0])
    assert len(normal.tiles) > 10
    for record in normal.tiles:
        original = np.ascontiguousarray(pixels[record.y : record.y + 64, record.x : record.x + 64])
        assert record.image == encode_jpeg(normaliser(original), 90)


def test_target_stain_of_the_settings_is_used(slides, tile, command):
    printed = command("fit_stain.py", "--source", slides[1], "--settings", '{"size": 64}')
    assert printed.returncode == 0, printed.stderr
    import yaml

    settings = yaml.safe_load(printed.stdout)["tiles"]
    TileSettings(**settings)
    other = tile(slides[1], folder="other", quality=100)
    normal = tile(slides[0], folder="normal", quality=100, **settings)
    assert normal.state["stain"]["target"] == {"method": "macenko", **settings["stain_target"]}
    assert np.abs(mean_colour(normal) - mean_colour(other)).max() < 8
    assert (
        json.loads(json.dumps(normal.state["settings"]))["stain_target"] == settings["stain_target"]
    )


@pytest.mark.parametrize("method", ["macenko", "reinhard"])
def test_settings_contain_the_published_target(method):
    settings = TileSettings(stain=method)
    assert settings.stain_target == REFERENCE[method].values
    # As read from the settings of a trained model.
    assert TileSettings(**json.loads(settings.model_dump_json())) == settings
    assert TileSettings().stain_target is None


def test_slide_without_a_stain_keeps_its_colours(tile, tmp_path):
    pixels = glass(256, 256)
    pixels[:128] = (190, 110, 160)  # a single colour
    path = write_svs(tmp_path / "s.svs", pixels)
    plain, normal = tile(path, folder="plain"), tile(path, folder="normal", stain="reinhard")
    assert normal.state["state"] == "tiled"
    assert normal.state["stain"]["source"] is None
    assert "only one colour" in normal.state["stain"]["why_not"]
    assert [record.image for record in normal.tiles] == [record.image for record in plain.tiles]


def test_fluorescence_has_no_stain(tile, command, tmp_path):
    pixels = np.zeros((256, 256, 3), np.uint8)
    pixels[64:128] = (20, 140, 60)
    path = write_svs(tmp_path / "s.svs", pixels)
    state = tile(path, stain="macenko").state
    assert (state["state"], state["illumination"]) == ("tiled", "fluorescence")
    assert state["stain"]["why_not"] == "it is a fluorescence slide, which has no stain"
    assert state["tiles"]["marked"] == {}  # rules for brightfield do not apply
    refused = command("fit_stain.py", "--source", path, "--settings", '{"size": 64}')
    assert refused.returncode == 2
    assert refused.stderr == f"error: {path}: it is a fluorescence slide, which has no stain\n"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"stain_target": {"mean": [1, 2, 3]}}, "has no effect with stain: 'off'"),
        (
            {"stain": "reinhard", "stain_target": {"mean": [1, 2, 3]}},
            "a reinhard stain must have mean and",
        ),
        (
            {
                "stain": "macenko",
                "stain_target": {"vectors": [[1, 0], [0, 1]], "strengths": [1, 1]},
            },
            "vectors of a macenko stain must be 2×3 finite numbers",
        ),
    ],
)
def test_invalid_target_is_refused_by_the_settings(values, reason):
    with pytest.raises(ValueError, match="stain_target: ") as refused:
        TileSettings(**values)
    assert reason in str(refused.value)
