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
) -> Path:
    """Write the encoder.

    Args:
        path: of the file.
        size: side of its input, in pixels.
        channels_first: whether it takes (n, 3, height, width) instead of (n, height, width, 3).
        bias: added to each number.
        batch: tiles that it takes at once; "n": any number.
        with_parts: whether it also returns the colours of the parts, (n, 3, 4, 4), first.
    """
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
        helper.make_node("Flatten", ["parts"], ["colours"]),
        helper.make_node("Add", ["colours", "bias"], ["embedding"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, shape)],
        [
            *(
                [helper.make_tensor_value_info("parts", TensorProto.FLOAT, [batch, 3, 4, 4])]
                if with_parts
                else []
            ),
            helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [batch, 48]),
        ],
        [numpy_helper.from_array(np.full(48, bias, np.float32), "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path
