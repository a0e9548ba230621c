"""A tiny encoder as ONNX: the mean colours of 4 × 4 parts of a tile, 48 numbers."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write_tiny_encoder(
    path: Path,
    size: int = 128,
    channels_first: bool = False,
    bias: float = 0,
    batch: int | str = "n",
    with_parts: bool = False,
    half: bool = False,
    fails: bool = False,
) -> Path:
    """Write the encoder.

    Args:
        path: of the file.
        size: side of its input, in pixels.
        channels_first: whether it takes (n, 3, height, width) instead of (n, height, width, 3).
        bias: added to each number.
        batch: tiles that it takes at once; "n": any number.
        with_parts: whether it also returns the colours of the parts, (n, 3, 4, 4), first.
        half: whether it computes in float16.
        fails: whether it fails when it computes: it says that it takes 32 tiles, but takes 8.
    """
    number, stored = (TensorProto.FLOAT16, np.float16) if half else (TensorProto.FLOAT, np.float32)
    shape = [batch, 3, size, size] if channels_first else [batch, size, size, 3]
    side = size // 4
    nodes = []
    if not channels_first:
        nodes.append(helper.make_node("Transpose", ["pixels"], ["planes"], perm=[0, 3, 1, 2]))
    planes = "pixels" if channels_first else "planes"
    nodes += [
        helper.make_node(
            "AveragePool", [planes], ["parts"], kernel_shape=[side, side], strides=[side, side]
        ),
        helper.make_node("Reshape", ["parts", "rows"], ["colours"]),
        helper.make_node("Add", ["colours", "bias"], ["embedding"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("pixels", number, shape)],
        [
            *(
                [helper.make_tensor_value_info("parts", number, [batch, 3, 4, 4])]
                if with_parts
                else []
            ),
            helper.make_tensor_value_info("embedding", number, [batch, 48]),
        ],
        [
            numpy_helper.from_array(np.full(48, bias, stored), "bias"),
            numpy_helper.from_array(np.array([8 if fails else -1, 48]), "rows"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path
