"""Open an encoder, and apply it to tiles."""

from abc import ABC, abstractmethod
from pathlib import Path

import cv2
import numpy as np

from gigatile.errors import UserError
from gigatile.settings.encoder import EncoderSettings

# Tiles that an encoder gets at once, unless its file says how many. It is fixed, and a smaller last
# batch is filled up, so that an embedding never depends on the other tiles of its slide.
BATCH = 32


class Encoder(ABC):
    """An encoder of tiles.

    Attributes:
        size: side of its input, in pixels.
        batch: tiles that it gets at once.
        dimensions: numbers of an embedding.
    """

    size: int
    batch: int = BATCH
    dimensions: int

    def __init__(self, settings: EncoderSettings) -> None:
        self._scale: tuple[np.ndarray, np.ndarray] | None = None
        if settings.mean is not None and settings.deviation is not None:
            # (p / 255 - mean) / deviation, as p * factor + offset
            deviation = np.array(settings.deviation, np.float64)
            factor = 1 / (255 * deviation)
            offset = -np.array(settings.mean, np.float64) / deviation
            self._scale = factor.astype(np.float32), offset.astype(np.float32)

    def input_of(self, tiles: np.ndarray) -> np.ndarray:
        """Return what the encoder takes: (n, size, size, 3) float32.

        Args:
            tiles: (n, side, side, 3) uint8.
        """
        if tiles.shape[1] != self.size:
            # The mean of the pixels below each new one if tiles get smaller, else bicubic.
            how = cv2.INTER_AREA if tiles.shape[1] > self.size else cv2.INTER_CUBIC
            sides = (self.size, self.size)
            tiles = np.stack([cv2.resize(tile, sides, interpolation=how) for tile in tiles])
        pixels = tiles.astype(np.float32)
        if self._scale is not None:
            factor, offset = self._scale
            pixels *= factor
            pixels += offset
        return pixels

    def embed(self, pixels: np.ndarray) -> np.ndarray:
        """Return embeddings: (n, dimensions) float32.

        Args:
            pixels: of `input_of`; at most `batch`.
        """
        count = len(pixels)
        if count < self.batch:
            padding = np.zeros((self.batch - count, *pixels.shape[1:]), np.float32)
            pixels = np.concatenate([pixels, padding])
        return self._run(pixels)[:count]

    @abstractmethod
    def _run(self, pixels: np.ndarray) -> np.ndarray:
        """Return the embeddings of `batch` tiles."""

    def _check(self, path: Path) -> None:
        """Try the encoder, and take the number of its dimensions from what it returns."""
        grey = np.zeros((self.batch, self.size, self.size, 3), np.float32)
        try:
            embeddings = self._run(grey)
        except Exception as error:  # a runtime raises many types for input that it does not take
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"{path}: does not take {self.batch} tiles of {self.size} px ({reason}); set "
                "encoder.size"
            ) from None
        if embeddings.ndim != 2 or len(embeddings) != self.batch:
            raise UserError(
                f"{path}: returns the shape {embeddings.shape} for {self.batch} tiles; must be "
                f"({self.batch}, numbers): one embedding for each tile"
            )
        if embeddings.dtype.kind != "f":
            raise UserError(f"{path}: returns {embeddings.dtype}; must be floating-point numbers")
        self.dimensions = embeddings.shape[1]


class OnnxEncoder(Encoder):
    """An encoder in ONNX Runtime, on the GPU if there is one."""

    def __init__(
        self, path: Path, settings: EncoderSettings, tile_size: int, cores: int = 1
    ) -> None:
        """Open an encoder; see `open_encoder`."""
        import onnxruntime

        super().__init__(settings)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = cores, 1
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
        self._input = inputs[0].name
        self._half = inputs[0].type == "tensor(float16)"
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
        self._check(path)

    def _run(self, pixels: np.ndarray) -> np.ndarray:
        if self._channels_first:
            pixels = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        if self._half:
            pixels = pixels.astype(np.float16)
        (embeddings,) = self._session.run([self._output], {self._input: pixels})
        return np.asarray(embeddings, np.float32) if self._half else np.asarray(embeddings)


class KerasEncoder(Encoder):
    """An encoder in TensorFlow, on the GPU if there is one."""

    def __init__(self, path: Path, settings: EncoderSettings, tile_size: int) -> None:
        """Open an encoder; see `open_encoder`."""
        import keras
        import tensorflow as tf

        super().__init__(settings)
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
        self._check(path)

    def _run(self, pixels: np.ndarray) -> np.ndarray:
        embeddings = self._graph(pixels)
        return np.asarray(embeddings, np.float32)


def open_encoder(path: Path, settings: EncoderSettings, tile_size: int, cores: int = 1) -> Encoder:
    """Open an encoder.

    Args:
        path: of the file.
        settings: the size of its input, and how pixels are scaled.
        tile_size: side of the tiles, in pixels.
        cores: for ONNX Runtime.

    Raises:
        UserError: the file cannot be loaded, or does not turn tiles into embeddings.
    """
    if path.suffix == ".onnx":
        return OnnxEncoder(path, settings, tile_size, cores)
    return KerasEncoder(path, settings, tile_size)
