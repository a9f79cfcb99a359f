"""An ONNX file with a probe's inputs and outputs that exports in no time: confidence is sigmoid(mean of all states)."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper


def write_mean_probe(file: Path, width: int, metadata: dict[str, str]) -> Path:
    """`confidence` = sigmoid(mean over time and width of `states`), for rows without padding."""
    inputs = [
        helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "time", width]),
        helper.make_tensor_value_info("lengths", TensorProto.INT64, ["batch"]),
    ]
    nodes = [
        helper.make_node("ReduceMean", ["states", "axes"], ["mean"], keepdims=0),
        helper.make_node("Sigmoid", ["mean"], ["score"]),
        helper.make_node("Cast", ["lengths"], ["as_float"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["as_float", "as_float"], ["nothing"]),
        helper.make_node("Add", ["score", "nothing"], ["confidence"]),
    ]
    outputs = [helper.make_tensor_value_info("confidence", TensorProto.FLOAT, ["batch"])]
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2])
    graph = helper.make_graph(nodes, "mean", inputs, outputs, initializer=[axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, metadata)
    onnx.save(model, file)
    return file
