"""TensorFlow Serving's REST interface: https://www.tensorflow.org/tfx/serving/api_rest."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from gigatile.serving import inputs
from gigatile.serving.errors import RequestError
from gigatile.serving.registry import ModelRegistry, ServedModel, TileModel
from gigatile.serving.settings import ServerSettings

# The signatures of tile classifiers, as in the SavedModel of a bundle.
DEFAULT, ENCODED = "serving_default", "encoded"
SCORES = "scores"
# Requests that are parsed at the same time: each one takes several times its size in memory.
PARSED_AT_ONCE = 2
_JSON_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


def router(models: ModelRegistry, settings: ServerSettings) -> APIRouter:
    """Return the routes of TensorFlow Serving for the models."""
    routes = APIRouter(prefix="/v1/models", tags=["TensorFlow Serving"])
    answer = _Answers(models, settings)
    for path in ("/{name}", "/{name}/versions/{version}"):
        routes.get(path, summary="State of the versions of a model")(_of_path(answer.status))
        routes.get(f"{path}/metadata", summary="Signatures of a model")(_of_path(answer.metadata))
        for verb, summary, method in (
            ("predict", "Scores of tiles", answer.predict),
            ("classify", "Labels and scores of tiles", answer.classify),
            ("regress", "Refused: these models classify", answer.regress),
        ):
            routes.post(f"{path}:{verb}", summary=summary, openapi_extra=_JSON_BODY)(
                _of_path(method)
            )
    return routes


def _of_path(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a route that calls a method with the name and the version in the path."""

    async def route(request: Request) -> Response:
        version = request.path_params.get("version")
        # Of more digits than a version of 64 bits, int() could take long.
        if version is not None and not (
            version.isascii() and version.isdigit() and len(version) < 20
        ):
            raise RequestError(400, f"Failed to convert version: {version[:40]!r}")
        content = await method(
            request, request.path_params["name"], None if version is None else int(version)
        )
        return JSONResponse(content)

    return route


class _Answers:
    """The answers to requests: JSON content from the request, the name and the version."""

    def __init__(self, models: ModelRegistry, settings: ServerSettings) -> None:
        self._models, self._settings = models, settings
        self._parsers = ThreadPoolExecutor(PARSED_AT_ONCE, thread_name_prefix="parse")

    async def status(self, request: Request, name: str, version: int | None) -> Any:
        """Return the state of one version, or of all of them."""
        state = "AVAILABLE" if self._models.is_ready else "LOADING"
        return {
            "model_version_status": [
                {
                    "version": str(model.version),
                    "state": state,
                    "status": {"error_code": "OK", "error_message": ""},
                }
                for model in self._models.versions(name, version)
            ]
        }

    async def metadata(self, request: Request, name: str, version: int | None) -> Any:
        """Return the signatures."""
        model = self._models.find(name, version)
        signatures = {} if model.tiles is None else _signatures(model.tiles)
        return {
            "model_spec": {"name": name, "signature_name": "", "version": str(model.version)},
            "metadata": {"signature_def": {"signature_def": signatures}},
        }

    async def predict(self, request: Request, name: str, version: int | None) -> Any:
        """Return scores in the format of the request: of rows (instances) or columns (inputs)."""
        model = self._tile_model(name, version)
        content, tiles = await self._parse(request, partial(_predict_tiles, model, self._settings))
        scores = (await self._score(model, tiles)).tolist()
        return {"predictions": scores} if "instances" in content else {"outputs": scores}

    async def classify(self, request: Request, name: str, version: int | None) -> Any:
        """Return pairs of label and score for each example."""
        model = self._tile_model(name, version)
        _, tiles = await self._parse(request, partial(_classify_tiles, model, self._settings))
        scores = await self._score(model, tiles)
        return {
            "result": [
                [[label, score] for label, score in zip(model.classes, row, strict=True)]
                for row in scores.tolist()
            ]
        }

    async def regress(self, request: Request, name: str, version: int | None) -> Any:
        """Refuse: no model of the server is one of regression."""
        self._tile_model(name, version)
        raise RequestError(
            400,
            "Expected regression signature method_name; the model has tensorflow/serving/predict",
        )

    def _tile_model(self, name: str, version: int | None) -> TileModel:
        model: ServedModel = self._models.find(name, version)
        if model.tiles is None:
            raise RequestError(
                400,
                f"the model is for the task {model.bundle.manifest.task} and does not classify "
                "tiles; use gigatile predict",
            )
        return model.tiles

    async def _parse(
        self, request: Request, read: Callable[[bytes], tuple[dict[str, Any], np.ndarray]]
    ) -> tuple[dict[str, Any], np.ndarray]:
        body = await request.body()
        return await asyncio.get_running_loop().run_in_executor(self._parsers, read, body)

    async def _score(self, model: TileModel, tiles: np.ndarray) -> np.ndarray:
        scores = asyncio.wrap_future(model.batcher.submit(tiles))
        try:
            return await asyncio.wait_for(scores, self._settings.request_seconds)
        except TimeoutError:
            raise RequestError(
                504, f"no scores within {self._settings.request_seconds:g} s", retry_after=10
            ) from None


def _predict_tiles(
    model: TileModel, settings: ServerSettings, body: bytes
) -> tuple[dict[str, Any], np.ndarray]:
    """Return the content and the pixels of a request of `predict`."""
    content = inputs.parse_json(body)
    keys = content.keys() & {"instances", "inputs"}
    if len(keys) != 1:
        raise RequestError(400, "JSON Value: must have either 'instances' or 'inputs'")
    if unknown := sorted(content.keys() - {"instances", "inputs", "signature_name"}):
        raise RequestError(400, f"JSON Value: unknown key {unknown[0][:40]!r}")
    signature = content.get("signature_name", "")
    if signature not in ("", DEFAULT, ENCODED):
        raise RequestError(
            400, f"Serving signature name not found: must be {DEFAULT!r} or {ENCODED!r}"
        )
    values = content[next(iter(keys))]
    decode = inputs.decode_tiles if "instances" in keys else inputs.decode_columns
    return content, decode(values, model.size, settings.max_instances)


def _classify_tiles(
    model: TileModel, settings: ServerSettings, body: bytes
) -> tuple[dict[str, Any], np.ndarray]:
    """Return the content and the pixels of a request of `classify`.

    `context` has features that all examples share.
    """
    content = inputs.parse_json(body)
    if unknown := sorted(content.keys() - {"examples", "context", "signature_name"}):
        raise RequestError(400, f"JSON Value: unknown key {unknown[0][:40]!r}")
    context = content.get("context", {})
    examples = content.get("examples")
    if not isinstance(context, dict) or not isinstance(examples, list):
        raise RequestError(
            400, "JSON Value: must have 'examples', a list of objects; 'context' is an object"
        )
    values = []
    for number, example in enumerate(examples):
        if not isinstance(example, dict):
            raise RequestError(400, f"tile {number}: must be an object of features")
        features = context | example
        # A feature is a value, or a list of values.
        values.append(
            {
                key: v[0] if key == inputs.BYTES and isinstance(v, list) and len(v) == 1 else v
                for key, v in features.items()
            }
        )
    return content, inputs.decode_tiles(values, model.size, settings.max_instances)


def _signatures(model: TileModel) -> dict[str, Any]:
    def tensor(name: str, dtype: str, *dims: int) -> dict[str, Any]:
        shape = {
            "dim": [{"size": str(size), "name": ""} for size in dims],
            "unknown_rank": False,
        }
        return {"dtype": dtype, "tensor_shape": shape, "name": f"{name}:0"}

    outputs = {SCORES: tensor(SCORES, "DT_FLOAT", -1, len(model.classes))}
    given = {
        DEFAULT: {inputs.TILES: tensor(inputs.TILES, "DT_UINT8", -1, model.size, model.size, 3)},
        ENCODED: {inputs.BYTES: tensor(inputs.BYTES, "DT_STRING", -1)},
    }
    method = "tensorflow/serving/predict"
    return {
        name: {"inputs": tensors, "outputs": outputs, "method_name": method}
        for name, tensors in given.items()
    }
