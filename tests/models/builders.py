"""An ONNX file with a probe's inputs and outputs that exports in no time: confidence is sigmoid(mean of a row's states)."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper


def write_mean_probe(file: Path, width: int, metadata: dict[str, str]) -> Path:
    """`confidence` = sigmoid(sum over time and width of `states` / (`lengths` * width))."""
    inputs = [
        helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "time", width]),
        helper.make_tensor_value_info("lengths", TensorProto.INT64, ["batch"]),
    ]
    nodes = [
        helper.make_node("ReduceSum", ["states", "axes"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["lengths"], ["tokens"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["tokens", "width"], ["count"]),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("Sigmoid", ["mean"], ["confidence"]),
    ]
    outputs = [helper.make_tensor_value_info("confidence", TensorProto.FLOAT, ["batch"])]
    constants = [
        helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2]),
        helper.make_tensor("width", TensorProto.FLOAT, [], [width]),
    ]
    graph = helper.make_graph(nodes, "mean", inputs, outputs, initializer=constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, metadata)
    onnx.save(model, file)
    return file
