"""The documented requests and answers of TensorFlow Serving's REST interface, one by one.

https://www.tensorflow.org/tfx/serving/api_rest
"""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from gigatile.records import Tile
from gigatile.tasks.tile_classification.scoring import TileClassifier

MODEL = "/v1/models/tiny"


def pictures(number: int, seed: int = 1) -> np.ndarray:
    """Return pictures with structure: (n, 64, 64, 3) uint8."""
    coarse = np.random.default_rng(seed).integers(0, 256, (number, 8, 8, 3), np.uint8)
    return np.stack([np.asarray(Image.fromarray(picture).resize((64, 64))) for picture in coarse])


def encode(pixels: np.ndarray, kind: str = "JPEG") -> dict[str, str]:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **({"quality": 90} if kind == "JPEG" else {}))
    return {"b64": base64.b64encode(buffer.getvalue()).decode()}


@pytest.fixture(scope="module")
def classifier(bundle):
    return TileClassifier(bundle.model, bundle.described)


def expected_scores(classifier, values) -> np.ndarray:
    """Return the scores of files as the evaluation computes them."""
    files = [base64.b64decode(value["b64"]) for value in values]
    return classifier.score([Tile(data, "s", 0, 0, 64.0, None, 1.0) for data in files])


# --- Model status


def test_status_of_all_versions(server):
    assert server.client.get(MODEL).json() == {
        "model_version_status": [
            {
                "version": version,
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
            for version in ("12", "1")
        ]
    }


def test_status_of_one_version(server):
    (status,) = server.client.get(f"{MODEL}/versions/1").json()["model_version_status"]
    assert status["version"] == "1"
    for path in ("/v1/models/none", f"{MODEL}/versions/2"):
        answer = server.client.get(path)
        assert answer.status_code == 404
        assert "Could not find any versions of model" in answer.json()["error"]


def test_metadata(server):
    content = server.client.get(f"{MODEL}/metadata").json()
    assert content["model_spec"] == {"name": "tiny", "signature_name": "", "version": "12"}
    signatures = content["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {"serving_default", "encoded"}
    tiles = signatures["serving_default"]["inputs"]["tiles"]
    assert tiles["dtype"] == "DT_UINT8" and tiles["name"] == "tiles:0"
    assert tiles["tensor_shape"] == {
        "dim": [{"size": size, "name": ""} for size in ("-1", "64", "64", "3")],
        "unknown_rank": False,
    }
    assert signatures["encoded"]["inputs"]["image_bytes"]["dtype"] == "DT_STRING"
    assert signatures["encoded"]["method_name"] == "tensorflow/serving/predict"
    specific = server.client.get(f"{MODEL}/versions/1/metadata").json()
    assert specific["model_spec"]["version"] == "1"


# --- Predict


@pytest.mark.parametrize("path", [MODEL, f"{MODEL}/versions/1", f"{MODEL}/versions/12"])
def test_predict_rows(server, classifier, path):
    """Instances: the output has one tensor, so its name is left out."""
    values = [encode(picture) for picture in pictures(3)]
    answer = server.client.post(f"{path}:predict", json={"instances": values})
    assert set(answer.json()) == {"predictions"}
    np.testing.assert_allclose(
        answer.json()["predictions"], expected_scores(classifier, values), atol=1e-6
    )


@pytest.mark.parametrize(
    ("signature", "value"),
    [
        ({}, lambda picture: picture.tolist()),
        ({"signature_name": "serving_default"}, lambda picture: {"tiles": picture.tolist()}),
        ({"signature_name": "encoded"}, lambda picture: encode(picture, "PNG")),
        ({"signature_name": "encoded"}, lambda picture: {"image_bytes": encode(picture, "PNG")}),
        ({"signature_name": ""}, lambda picture: picture.astype(float).tolist()),
    ],
)
def test_every_form_of_a_tile(server, classifier, signature, value):
    """Arrays, lossless files, named inputs: the same scores."""
    tiles = pictures(2)
    rows = {"instances": [value(picture) for picture in tiles], **signature}
    scores = server.client.post(f"{MODEL}:predict", json=rows).json()["predictions"]
    np.testing.assert_allclose(scores, classifier.score_pixels(tiles), atol=1e-6)


@pytest.mark.parametrize(
    "value",
    [
        lambda tiles: tiles.tolist(),
        lambda tiles: {"tiles": tiles.tolist()},
        lambda tiles: [encode(picture, "PNG") for picture in tiles],
        lambda tiles: {"image_bytes": [encode(picture, "PNG") for picture in tiles]},
    ],
)
def test_predict_columns(server, classifier, value):
    tiles = pictures(2)
    answer = server.client.post(f"{MODEL}:predict", json={"inputs": value(tiles)}).json()
    assert set(answer) == {"outputs"}
    np.testing.assert_allclose(answer["outputs"], classifier.score_pixels(tiles), atol=1e-6)


def test_single_file_as_column(server):
    value = encode(pictures(1)[0])
    for given in (value, {"image_bytes": value}):
        answer = server.client.post(f"{MODEL}:predict", json={"inputs": given}).json()
        assert np.shape(answer["outputs"]) == (1, 3)


def test_grey_tiles_are_accepted(server):
    grey = np.tile(np.arange(64, dtype=np.uint8), (64, 1))
    values = [encode(grey, "PNG"), np.repeat(grey[..., None], 3, -1).tolist()]
    first, second = server.client.post(f"{MODEL}:predict", json={"instances": values}).json()[
        "predictions"
    ]
    np.testing.assert_allclose(first, second, atol=1e-6)


# --- Classify and regress


def test_classify(server, classifier):
    values = [encode(picture) for picture in pictures(2)]
    examples = [{"image_bytes": values[0]}, {"image_bytes": [values[1]]}]
    result = server.client.post(f"{MODEL}:classify", json={"examples": examples}).json()["result"]
    scores = expected_scores(classifier, values)
    for pairs, row in zip(result, scores, strict=True):
        assert [label for label, _ in pairs] == ["luad", "lusc", "nor"]
        np.testing.assert_allclose([score for _, score in pairs], row, atol=1e-6)


def test_classify_with_common_features(server):
    body = {"context": {"image_bytes": encode(pictures(1)[0])}, "examples": [{}, {}]}
    first, second = server.client.post(f"{MODEL}:classify", json=body).json()["result"]
    assert first == second


def test_regress_is_refused(server):
    answer = server.client.post(f"{MODEL}:regress", json={"examples": [{}]})
    assert answer.status_code == 400 and "regression signature" in answer.json()["error"]


def test_unknown_models(server):
    for path in ("/v1/models/none:predict", f"{MODEL}/versions/2:predict"):
        answer = server.client.post(path, json={"instances": [1]})
        assert answer.status_code == 404
        assert answer.json()["error"].startswith("Servable not found for request: ")
    answer = server.client.post(f"{MODEL}/labels/stable:predict", json={"instances": [1]})
    assert answer.status_code == 404 and "error" in answer.json()


# --- Batches


def test_scores_do_not_depend_on_other_tiles(server, classifier):
    """Of a tile alone, in batches of each size, and in a request of several batches."""
    tiles = pictures(150)
    expected = classifier.score_pixels(tiles)
    for number in (1, 2, 5, 17, 64, 65, 150):
        body = {"instances": [encode(picture, "PNG") for picture in tiles[:number]]}
        answer = server.client.post(f"{MODEL}:predict", json=body)
        np.testing.assert_allclose(answer.json()["predictions"], expected[:number], atol=2e-6)
    assert np.ptp(expected) > 0.01


def test_models_do_not_mix(server):
    """Two models at once, with tiles of other sizes."""
    small = [encode(np.zeros((32, 32, 3), np.uint8))]
    assert server.client.post("/v1/models/other:predict", json={"instances": small}).is_success
    answer = server.client.post(f"{MODEL}:predict", json={"instances": small})
    assert answer.json()["error"] == "tile 0: has 32 × 32 px; must be 64 × 64"
