"""Open an encoder, and apply it to tiles."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from gigatile.errors import UserError
from gigatile.settings.encoder import EncoderSettings

# Tiles that an encoder gets at once, unless its file says how many. It is fixed, and a smaller last
# batch is filled up, so that an embedding never depends on the other tiles of its slide.
BATCH = 32
# Threads that decode tiles, each with the input of a batch in memory.
MOST_THREADS = 8


class Encoder(ABC):
    """An encoder of tiles. Several threads may use it.

    Attributes:
        size: side of its input, in pixels.
        batch: tiles that it gets at once.
        dimensions: numbers of an embedding.
        threads: that should use it, so that some decode tiles while it computes.
    """

    size: int
    batch: int = BATCH
    dimensions: int

    def __init__(self, path: Path, settings: EncoderSettings, cores: int) -> None:
        self.threads = max(2, min(cores, MOST_THREADS))
        self.dimensions = 0
        self._path = path
        self._limit_batches(1)
        self._channels_first = False
        self._type: np.dtype = np.dtype(np.float32)
        self._scale: tuple[np.ndarray, np.ndarray] | None = None
        if settings.mean is not None and settings.deviation is not None:
            # (p / 255 - mean) / deviation, as p * factor + offset
            deviation = np.array(settings.deviation, np.float64)
            factor = 1 / (255 * deviation)
            offset = -np.array(settings.mean, np.float64) / deviation
            self._scale = factor.astype(np.float32), offset.astype(np.float32)

    def _limit_batches(self, count: int) -> None:
        """Set how many batches are computed at the same time."""
        self._computing = threading.BoundedSemaphore(count)

    def new_input(self) -> np.ndarray:
        """Return an array for a batch of input, with undefined content.

        It is (batch, size, size, 3) or (batch, 3, size, size), of float32 or float16.
        """
        sides = (self.size, self.size)
        shape = (3, *sides) if self._channels_first else (*sides, 3)
        return np.empty((self.batch, *shape), self._type)

    def input_of(
        self, tiles: np.ndarray | Sequence[np.ndarray], into: np.ndarray | None = None
    ) -> np.ndarray:
        """Return what the encoder takes, for at most `batch` tiles: the first rows of `into`.

        Args:
            tiles: n times (side, side, 3) uint8.
            into: an array of `new_input`, which is overwritten. New memory for each batch would
                take longer than scaling.
        """
        inputs = (self.new_input() if into is None else into)[: len(tiles)]
        for tile, row in zip(tiles, inputs, strict=True):
            self._scale_tile(tile, row)
        return inputs

    def _scale_tile(self, tile: np.ndarray, into: np.ndarray) -> None:
        if len(tile) != self.size:
            # The mean of the pixels below each new one if tiles get smaller, else bicubic.
            how = cv2.INTER_AREA if len(tile) > self.size else cv2.INTER_CUBIC
            tile = cv2.resize(tile, (self.size, self.size), interpolation=how)
        if self._scale is None:
            into[:] = tile.transpose(2, 0, 1) if self._channels_first else tile
            return
        factor, offset = self._scale
        if self._channels_first:
            tile = tile.transpose(2, 0, 1)
            factor, offset = factor[:, None, None], offset[:, None, None]
        else:
            # A loop over rows is several times as fast as one over three channels.
            tile, into = tile.reshape(self.size, -1), into.reshape(self.size, -1)
            factor, offset = np.tile(factor, self.size), np.tile(offset, self.size)
        if into.dtype == np.float32:
            np.multiply(tile, factor, out=into)
            into += offset
        else:
            into[:] = tile * factor + offset

    def embed(self, pixels: np.ndarray) -> np.ndarray:
        """Return embeddings: (n, dimensions) float32.

        Args:
            pixels: of `input_of`; at most `batch`.

        Raises:
            UserError: the encoder does not take them, or does not return embeddings.
        """
        count = len(pixels)
        if count < self.batch:
            padding = np.zeros((self.batch - count, *pixels.shape[1:]), pixels.dtype)
            pixels = np.concatenate([pixels, padding])
        try:
            with self._computing:
                embeddings = self._run(pixels)
        except Exception as error:  # a runtime raises many types for input that it does not take
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"{self._path}: does not take {self.batch} tiles of {self.size} px ({reason}); "
                "set encoder.size"
            ) from None
        expected = (self.batch, self.dimensions or embeddings.shape[-1])
        if embeddings.shape != expected:
            raise UserError(
                f"{self._path}: returns the shape {embeddings.shape} for {self.batch} tiles; must "
                f"be ({self.batch}, {self.dimensions or 'numbers'}): one embedding for each tile"
            )
        if embeddings.dtype.kind != "f":
            raise UserError(
                f"{self._path}: returns {embeddings.dtype}; must be floating-point numbers"
            )
        return np.asarray(embeddings[:count], np.float32)

    @abstractmethod
    def _run(self, pixels: np.ndarray) -> np.ndarray:
        """Return the embeddings of `batch` tiles."""

    def _try(self) -> None:
        """Try the encoder, and take the number of its dimensions from what it returns."""
        grey = self.new_input()
        grey[:] = 0
        self.dimensions = self.embed(grey).shape[1]


class OnnxEncoder(Encoder):
    """An encoder in ONNX Runtime, on the GPU if there is one."""

    def __init__(
        self, path: Path, settings: EncoderSettings, tile_size: int, cores: int = 1
    ) -> None:
        """Open an encoder; see `open_encoder`."""
        import onnxruntime

        super().__init__(path, settings, cores)
        # Two batches are computed at once, each by a thread that calls: that is faster than both
        # cores on one. Further cores share both.
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = max(1, cores - 1), 1
        options.use_deterministic_compute = True
        options.log_severity_level = 3
        # Threads that wait by spinning would take the cores from the decoding of the next tiles.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        available = onnxruntime.get_available_providers()
        wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=[name for name in wanted if name in available]
            )
        except Exception as error:  # ONNX Runtime's exceptions have no common type
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"{path}: cannot be loaded by ONNX Runtime ({reason})") from None
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4:
            shapes = ", ".join(f"{each.name} {each.shape}" for each in inputs)
            raise UserError(
                f"{path}: has the inputs {shapes}; must have one, (n, height, width, 3) or "
                "(n, 3, height, width)"
            )
        if self._session.get_providers()[0] == "CPUExecutionProvider":
            self.threads = min(cores, MOST_THREADS)
            self._limit_batches(min(cores, 2))
        self._input = inputs[0].name
        if inputs[0].type == "tensor(float16)":
            self._type = np.dtype(np.float16)
        shape = inputs[0].shape
        if isinstance(shape[0], int):
            self.batch = shape[0]
        self._channels_first = shape[1] == 3 and shape[3] != 3
        side = shape[2]
        self.size = settings.size or (side if isinstance(side, int) else tile_size)
        outputs = self._session.get_outputs()
        # Some also return the embeddings of the parts of a tile, (n, parts, numbers).
        pooled = [output for output in outputs if len(output.shape) == 2] or outputs
        self._output = pooled[0].name
        dimensions = pooled[0].shape[-1]
        if side == self.size and len(pooled[0].shape) == 2 and isinstance(dimensions, int):
            self.dimensions = dimensions
        else:
            self._try()

    def _run(self, pixels: np.ndarray) -> np.ndarray:
        (embeddings,) = self._session.run([self._output], {self._input: pixels})
        return np.asarray(embeddings)


class KerasEncoder(Encoder):
    """An encoder in TensorFlow, on the GPU if there is one."""

    def __init__(
        self, path: Path, settings: EncoderSettings, tile_size: int, cores: int = 1
    ) -> None:
        """Open an encoder; see `open_encoder`."""
        import keras
        import tensorflow as tf

        super().__init__(path, settings, cores)
        tf.config.experimental.enable_op_determinism()
        try:
            # Safe mode refuses code in the file: models are untrusted input.
            self._model = keras.models.load_model(path, compile=False, safe_mode=True)
        except (ValueError, OSError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"{path}: cannot be loaded by Keras ({reason})") from None
        shape = self._model.input_shape
        if not isinstance(shape, tuple) or len(shape) != 4 or shape[3] != 3:
            raise UserError(f"{path}: has the input {shape}; must be (n, height, width, 3)")
        self.size = settings.size or shape[1] or tile_size
        self._graph = tf.function(lambda tiles: self._model(tiles, training=False))
        self._try()

    def _run(self, pixels: np.ndarray) -> np.ndarray:
        return np.asarray(self._graph(pixels))


def open_encoder(path: Path, settings: EncoderSettings, tile_size: int, cores: int = 1) -> Encoder:
    """Open an encoder.

    Args:
        path: of the file.
        settings: the size of its input, and how pixels are scaled.
        tile_size: side of the tiles, in pixels.
        cores: to use.

    Raises:
        UserError: the file cannot be loaded, or does not turn tiles into embeddings.
    """
    if path.suffix == ".onnx":
        return OnnxEncoder(path, settings, tile_size, cores)
    return KerasEncoder(path, settings, tile_size, cores)
