"""The models of the server, by name and version."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from gigatile.bundle.contents import Bundle
from gigatile.errors import UserError
from gigatile.serving.batching import Batcher
from gigatile.serving.errors import RequestError
from gigatile.serving.settings import ServerSettings
from gigatile.tasks.tile_classification.scoring import TileClassifier


class TileModel:
    """A classifier of tiles, with the queue of its tiles.

    Attributes:
        classes: names of the scores.
        size: side of the tiles in pixels.
        batcher: the queue.
    """

    def __init__(
        self, bundle: Bundle, settings: ServerSettings, observe: Callable[[int], None]
    ) -> None:
        """Load the model, and compile it.

        Raises:
            UserError: the model is damaged.
        """
        classifier = TileClassifier(bundle.model, bundle.described)
        self.classes, self.size = classifier.classes, classifier.tile_size
        self.batcher = Batcher(
            classifier.score_pixels,
            settings.max_batch,
            settings.batch_wait_ms / 1000,
            settings.max_queue,
            observe,
        )
        for number in (1, settings.max_batch):
            classifier.score_pixels(np.zeros((number, self.size, self.size, 3), np.uint8))


@dataclass(frozen=True)
class ServedModel:
    """A version of a model.

    Attributes:
        tiles: for requests with tiles; None: the task has no tiles to classify.
        encoder: the file of the encoder of a model of embeddings; None: of another model.
    """

    bundle: Bundle
    tiles: TileModel | None
    encoder: Path | None = None

    @property
    def name(self) -> str:
        """The name in addresses."""
        return self.bundle.manifest.name

    @property
    def version(self) -> int:
        """The version; the largest one of a name is the default."""
        return self.bundle.manifest.version


class ModelRegistry:
    """All models, which do not change while the server runs."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """Sort the models by name and version."""
        by_name: dict[str, dict[int, ServedModel]] = {}
        for model in sorted(models, key=lambda model: (model.name, model.version)):
            by_name.setdefault(model.name, {})[model.version] = model
        self.by_name: Mapping[str, Mapping[int, ServedModel]] = by_name
        self._is_started = threading.Event()
        self._is_draining = False

    @property
    def models(self) -> list[ServedModel]:
        """All versions of all models."""
        return [model for versions in self.by_name.values() for model in versions.values()]

    @property
    def is_ready(self) -> bool:
        """Whether new requests should be sent: the models are loaded, and the server stays."""
        return self._is_started.is_set() and not self._is_draining

    def drain(self) -> None:
        """Announce the end: requests are still answered, but `is_ready` is False."""
        self._is_draining = True

    def start(self) -> None:
        """Start the queues."""
        for model in self.models:
            if model.tiles:
                model.tiles.batcher.start()
        self._is_started.set()

    def stop(self) -> None:
        """Score what waits, and stop the queues."""
        self._is_started.clear()
        for model in self.models:
            if model.tiles:
                model.tiles.batcher.stop()

    def versions(self, name: str, version: int | None = None) -> list[ServedModel]:
        """Return one version of a model, or all of them, the latest first.

        Raises:
            RequestError: there is none.
        """
        by_version = self.by_name.get(name, {})
        if version is not None:
            by_version = {version: by_version[version]} if version in by_version else {}
        if not by_version:
            raise RequestError(404, f"Could not find any versions of model {name}")
        return [by_version[number] for number in sorted(by_version, reverse=True)]

    def find(self, name: str, version: int | None = None) -> ServedModel:
        """Return a version of a model, by default the latest.

        Raises:
            RequestError: there is none.
        """
        by_version = self.by_name.get(name, {})
        if not by_version or (version is not None and version not in by_version):
            wanted = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise RequestError(404, f"Servable not found for request: {wanted}")
        return by_version[max(by_version) if version is None else version]


def load_models(
    bundles: Sequence[Bundle],
    settings: ServerSettings,
    observe: Callable[[str, int, int], None] = lambda name, version, tiles: None,
    encoders: Mapping[Path, Path] = MappingProxyType({}),
) -> ModelRegistry:
    """Load the models of bundles.

    Args:
        bundles: from `gigatile.serving.bundles.open_bundles`.
        settings: of the server.
        observe: called with name, version and number of tiles of each batch.
        encoders: from `gigatile.serving.encoders.find_encoders`.

    Raises:
        UserError: a model is damaged.
    """
    return ModelRegistry(
        [_load(bundle, settings, observe, encoders.get(bundle.folder)) for bundle in bundles]
    )


def _load(
    bundle: Bundle,
    settings: ServerSettings,
    observe: Callable[[str, int, int], None],
    encoder: Path | None,
) -> ServedModel:
    manifest = bundle.manifest
    if manifest.task != "tile_classification":
        return ServedModel(bundle, None, encoder)
    tiles = TileModel(
        bundle, settings, lambda count: observe(manifest.name, manifest.version, count)
    )
    if tiles.classes != manifest.classes:
        raise UserError(f"{bundle.folder}: settings.json and bundle.json have other classes")
    return ServedModel(bundle, tiles)
