"""Logistic regressions as ONNX files: the fusion of scores, and the regression on the ranks of a writer's scores.

They compute in float64, as they were fitted; there is little to compute.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from abstain.learning.estimators.fusion import CLIP_MARGIN, Fusion
from abstain.learning.estimators.onnx_file import IR_VERSION, OPSET, open_session, to_bytes

HEADER = "logistic"
INPUT, OUTPUT = "inputs", "confidence"


class OnnxLogistic:
    """A logistic regression, run by ONNX Runtime on one core.

    Args:
        content: The ONNX file.

    Attributes:
        metadata: The metadata of the file.

    Raises:
        KeyError, ValueError or an error of ONNX Runtime: The file is no logistic regression.
    """

    def __init__(self, content: bytes) -> None:
        self._session = open_session(content)
        self.metadata: dict[str, Any] = json.loads(self._session.get_modelmeta().custom_metadata_map[HEADER])

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Compute confidences.

        Args:
            inputs: float64 (rows, columns).

        Returns:
            float64 (rows,) in [0, 1].
        """
        return np.asarray(self._session.run([OUTPUT], {INPUT: np.ascontiguousarray(inputs, np.float64)})[0][:, 0])


def logistic_to_onnx(coefficient: Sequence[float], intercept: float, metadata: Mapping[str, Any]) -> bytes:
    """Convert a logistic regression, sigmoid(inputs @ coefficient + intercept), to an ONNX file.

    Args:
        coefficient: (columns,) weights.
        intercept: The intercept.
        metadata: JSON values for the metadata of the file.

    Returns:
        The ONNX file.
    """
    constants = {"coefficient": np.array(coefficient)[:, None], "intercept": np.array(intercept)}
    return _make_file(_make_affine_nodes(INPUT), constants, len(coefficient), metadata)


def fusion_to_onnx(fusion: Fusion) -> bytes:
    """Convert a fusion to an ONNX file.

    Args:
        fusion: The fusion.

    Returns:
        The ONNX file. Its input are the scores in the order of `fusion.names`, nan where one is missing; its output is
        the confidence.
    """
    nodes = [
        helper.make_node("IsNaN", [INPUT], ["missing"]),
        helper.make_node("Where", ["missing", "half", INPUT], ["known"]),
        helper.make_node("Clip", ["known", "low", "high"], ["clipped"]),
        helper.make_node("Sub", ["one", "clipped"], ["rest"]),
        helper.make_node("Div", ["clipped", "rest"], ["odds"]),
        helper.make_node("Log", ["odds"], ["log_odds"]),
        helper.make_node("Sub", ["log_odds", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "scale"], ["scaled"]),
        helper.make_node("Where", ["missing", "zero", "scaled"], ["standardized"]),
        helper.make_node("Cast", ["missing"], ["indicator"], to=TensorProto.DOUBLE),
        helper.make_node("Concat", ["standardized", "indicator"], ["columns"], axis=1),
        *_make_affine_nodes("columns"),
    ]
    constants = {
        "half": np.array(0.5),
        "low": np.array(CLIP_MARGIN),
        "high": np.array(1 - CLIP_MARGIN),
        "one": np.array(1.0),
        "zero": np.array(0.0),
        "mean": np.array(fusion.mean),
        "scale": np.array(fusion.scale),
        "coefficient": np.array([*fusion.coefficient, *fusion.missing_coefficient])[:, None],
        "intercept": np.array(fusion.intercept),
    }
    return _make_file(nodes, constants, len(fusion.names), {"names": list(fusion.names)})


def _make_affine_nodes(inputs: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("MatMul", [inputs, "coefficient"], ["product"]),
        helper.make_node("Add", ["product", "intercept"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], [OUTPUT]),
    ]


def _make_file(
    nodes: list[onnx.NodeProto], constants: Mapping[str, np.ndarray], columns: int, metadata: Mapping[str, Any]
) -> bytes:
    graph = helper.make_graph(
        nodes,
        HEADER,
        [helper.make_tensor_value_info(INPUT, TensorProto.DOUBLE, ["rows", columns])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.DOUBLE, ["rows", 1])],
        [numpy_helper.from_array(np.asarray(value, np.float64), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return to_bytes(model, {HEADER: json.dumps(dict(metadata), sort_keys=True)})
