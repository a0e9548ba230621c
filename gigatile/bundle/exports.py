"""Exports of a model to other formats, each compared with the model itself."""

import contextlib
import io
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gigatile.bundle.contents import ONNX, SAVED_MODEL, Export
from gigatile.errors import is_resource_error
from gigatile.records.shuffle import key64, random64, uniform_of

# Largest accepted difference of a score between an export and the model, which add in another
# order. Instance normalisation of the U-Net amplifies rounding where a volume is almost constant.
TOLERANCES = {"tile_classification": 1e-4, "volume_segmentation": 1e-3}
# Inputs of the comparison.
COMPARED = 16
# Side of the largest squares of one colour in these, in pixels.
COARSEST = 32
# Names of inputs and outputs, for other programs.
TILES, BYTES, SCORES = "tiles", "image_bytes", "scores"
# Why models of these tasks are not exported.
NOT_EXPORTED = {
    "slide_classification": "a slide is processed window by window; use gigatile predict",
    "slide_embedding": "it takes embeddings, not slides; use gigatile predict",
    "slide_outcome": "it takes embeddings, not slides; use gigatile predict",
    "whole_slide_outcome": "a slide is processed window by window; use gigatile predict",
    "instance_segmentation": "detection has parts that are no graph; use gigatile predict",
}


def write_exports(model: keras.Model, task: str, folder: Path) -> dict[str, Export]:
    """Write a SavedModel and an ONNX file to a folder, and compare their scores with the model's.

    Returns:
        The comparison by the name of the export; with `missing`, the reason why there is none: an
        export that does not give the scores of the model is not kept.
    """
    if reason := NOT_EXPORTED.get(task):
        return {name: Export(missing=reason) for name in (SAVED_MODEL, ONNX)}
    tolerance = TOLERANCES[task]
    spec = _input_spec(model, task)
    examples = make_examples(spec)
    expected = _scores(model, examples).numpy()
    exports = {}
    for name, write in ((SAVED_MODEL, _write_saved_model), (ONNX, _write_onnx)):
        try:
            with _quiet():
                score = write(model, spec, folder / name)
                difference = float(np.abs(score(examples) - expected).max())
        except Exception as error:  # the converters raise many types for what they do not know
            _remove(folder / name)
            if is_resource_error(error):
                raise
            reason = " ".join(str(error).split())[:300]
            exports[name] = Export(missing=f"the model cannot be converted ({reason})")
            continue
        if difference <= tolerance:  # not if it is not a number
            exports[name] = Export(difference=difference, tolerance=tolerance, inputs=len(examples))
        else:
            _remove(folder / name)
            exports[name] = Export(
                missing=f"its scores differ from the model's by {difference:g}, more than "
                f"{tolerance:g}"
            )
    return exports


def _input_spec(model: keras.Model, task: str) -> tf.TensorSpec:
    """Return shape, type and name of the input of the exports."""
    if task == "tile_classification":
        return tf.TensorSpec(model.input_shape, tf.uint8, name=TILES)
    return tf.TensorSpec(model.input_shape, model.inputs[0].dtype, name="volumes")


def _scores(model: keras.Model, inputs: tf.Tensor) -> tf.Tensor:
    return model(tf.cast(inputs, model.inputs[0].dtype), training=False)


def make_examples(spec: tf.TensorSpec) -> np.ndarray:
    """Return random inputs: (n, …) of the shape and type of `spec`.

    Pictures of squares of one colour, from one pixel to `COARSEST` pixels a side, so that they have
    structure on all scales. Whole numbers are 0 to 255, others -2 to 2.
    """
    shape, dtype = tuple(spec.shape[1:]), spec.dtype.as_numpy_dtype
    examples = np.empty((COMPARED, *shape), dtype)
    for number in range(COMPARED):
        square = min(2 ** (number % 6), COARSEST)
        coarse = (*(-(-side // square) for side in shape[:-1]), shape[-1])
        bits = random64(key64("export", number), np.arange(np.prod(coarse)))
        values = uniform_of(bits).reshape(coarse)
        for axis in range(len(coarse) - 1):
            values = values.repeat(square, axis)
        values = values[tuple(slice(side) for side in shape[:-1])]
        # Each picture has its own darkest and brightest colour.
        low, high = sorted((number * 37 % 101 / 100, 1 - number * 53 % 97 / 96))
        values = low + values * (high - low)
        is_integer = np.issubdtype(dtype, np.integer)
        examples[number] = np.rint(values * 255) if is_integer else (values - 0.5) * 4
    return examples


def _write_saved_model(
    model: keras.Model, spec: tf.TensorSpec, folder: Path
) -> Callable[[np.ndarray], np.ndarray]:
    """Write a SavedModel for TensorFlow Serving; return the function that applies it.

    Signatures: `serving_default` takes `tiles` (or `volumes`) and returns `scores`. That of tile
    classifiers has a second one, `encoded`, which takes `image_bytes`, files in JPEG or PNG.
    """
    archive = keras.export.ExportArchive()
    archive.track(model)

    def score(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {SCORES: _scores(model, inputs)}

    archive.add_endpoint("serve", score, input_signature=[spec])
    if spec.name == TILES:
        size = spec.shape[1]

        def decode(data: tf.Tensor) -> tf.Tensor:
            is_jpeg = tf.strings.substr(data, 0, 2) == b"\xff\xd8"
            # The accurate method, as in training: the fast one differs by up to 4 grey levels.
            tile = tf.cond(
                is_jpeg,
                lambda: tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE"),
                lambda: tf.io.decode_png(data, channels=3),
            )
            return tf.ensure_shape(tile, (size, size, 3))

        def score_encoded(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
            tiles = tf.map_fn(decode, image_bytes, fn_output_signature=tf.uint8)
            return score(tf.ensure_shape(tiles, (None, size, size, 3)))

        encoded = tf.TensorSpec((None,), tf.string, name=BYTES)
        archive.add_endpoint("encoded", score_encoded, input_signature=[encoded])
    archive.write_out(folder, verbose=False)
    loaded = tf.saved_model.load(folder)
    apply = loaded.signatures["serving_default"]
    return lambda inputs: apply(**{spec.name: tf.constant(inputs)})[SCORES].numpy()


def _write_onnx(
    model: keras.Model, spec: tf.TensorSpec, path: Path
) -> Callable[[np.ndarray], np.ndarray]:
    """Write an ONNX file; return the function that applies it with ONNX Runtime."""
    import onnx
    import onnxruntime
    import tf2onnx

    function = tf.function(lambda inputs: {SCORES: _scores(model, inputs)}, input_signature=[spec])
    # Keras compiles grouped convolutions into separate functions, which cannot be converted.
    with _inlined():
        converted, _ = tf2onnx.convert.from_function(
            function, input_signature=[spec], opset=18, custom_op_handlers=HANDLERS
        )
        captures = function.get_concrete_function(spec).graph.captures
    # Constants of a layer, such as those of its normalisation, became inputs.
    constants = {inner.name: outer for outer, inner in captures if outer.dtype != tf.resource}
    for given in [given for given in converted.graph.input if given.name in constants]:
        value = onnx.numpy_helper.from_array(constants[given.name].numpy(), given.name)
        converted.graph.initializer.append(value)
        converted.graph.input.remove(given)
    path.write_bytes(converted.SerializeToString())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,), (returned,) = session.get_inputs(), session.get_outputs()

    def score(inputs: np.ndarray) -> np.ndarray:
        scores: np.ndarray = session.run([returned.name], {given.name: inputs})[0]
        return scores

    return score


@contextlib.contextmanager
def _inlined() -> Iterator[None]:
    """Let a graph that is traced in the block contain the functions that it calls."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def _write_erfc(graph: Any, node: Any, name: str, args: Sequence[Any]) -> None:
    """Convert erfc, which is in GELU and which tf2onnx does not know, to 1 - erf."""
    (output,), dtype = node.output, graph.get_dtype(node.output[0])
    shape = graph.get_shape(output)
    graph.remove_node(name)
    const = graph.make_const(f"{name}_one", np.array(1, np.float32))
    erf = graph.make_node("Erf", node.input, dtypes=[dtype], shapes=[shape])
    inputs = [const.output[0], erf.output[0]]
    graph.make_node("Sub", inputs, name=name, outputs=[output], dtypes=[dtype], shapes=[shape])


# Of ops that tf2onnx does not know, in its own form.
HANDLERS: dict[str, tuple[Any, list[Any]]] = {"Erfc": (_write_erfc, [])}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what the converters print; warnings of a conversion that is checked help nobody."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)
