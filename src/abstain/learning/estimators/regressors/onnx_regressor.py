"""A correctness regressor as an ONNX file: conversion, metadata, and the session that serves it.

Notes:

* Fitted and loaded regressors predict through the ONNX graph alone; scikit-learn's predictions are for `parity`. The
  graph imputes medians and ends in a clip to [0, 1], so it is complete by itself. No pickle.
* The same fit gives the same bytes: the graph has no random names and no timestamp.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
from onnx import helper, numpy_helper
from sklearn.pipeline import Pipeline

from abstain.core.files import write_atomically
from abstain.learning.estimators.onnx_file import open_session, to_bytes
from abstain.learning.estimators.regressors.columns import to_matrix

HEADER = "regressor"
OPSET = {"": 20, "ai.onnx.ml": 3}
BATCH = 1024
"""Rows that are scored at once."""


class OnnxRegressor:
    """A fitted regressor, run by ONNX Runtime on one core.

    Args:
        content: the ONNX file.

    `described` is the file's metadata: kind, target, columns, step, training rows, versions. Raises `ValueError`,
    `KeyError` or one of ONNX Runtime's own errors for a file that is not a regressor.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._session = open_session(content)
        self.described: dict[str, Any] = json.loads(self._session.get_modelmeta().custom_metadata_map[HEADER])
        self.kind: str = self.described["kind"]
        self.target: str = self.described["target"]
        self.columns: tuple[str, ...] = tuple(self.described["columns"])
        self._input = self._session.get_inputs()[0].name

    @property
    def n_bytes(self) -> int:
        """Bytes of the file."""
        return len(self._content)

    def predict(self, features: pd.DataFrame) -> np.ndarray:
        """Scores in [0, 1], float64 (rows,), of `features` (rows, columns), whose columns are taken by name.

        nan is a missing value, and the score of a row whose values are all missing; other columns are ignored. Raises
        `AbstainError` for a column that is missing or holds no numbers.
        """
        scores = np.empty(len(features))
        for start in range(0, len(features), BATCH):
            values = to_matrix(features.iloc[start : start + BATCH], self.columns)
            found = self._session.run(None, {self._input: values})[0][:, 0]
            scores[start : start + BATCH] = np.where(np.isnan(values).all(axis=1), np.nan, found)
        return scores

    def save(self, file: Path) -> None:
        """Write the ONNX file; equal regressors are equal bytes."""
        write_atomically(file, self._content)


def to_onnx_regressor(pipeline: Pipeline, described: dict[str, Any]) -> OnnxRegressor:
    """`pipeline`, of float32 features (rows, columns), as a `OnnxRegressor`, with the versions that it was made with.

    `described` is JSON: `kind`, `target`, `columns` and any other metadata of the file.
    """
    import skl2onnx  # type: ignore[import-untyped]
    import sklearn
    from skl2onnx.common.data_types import FloatTensorType  # type: ignore[import-untyped]

    inputs = [("features", FloatTensorType([None, len(described["columns"])]))]
    model = skl2onnx.to_onnx(pipeline, initial_types=inputs, name=HEADER, target_opset=OPSET)
    _clip(model)
    versions = {"scikit-learn": sklearn.__version__, "skl2onnx": skl2onnx.__version__}
    return OnnxRegressor(to_bytes(model, {HEADER: json.dumps({**described, "versions": versions}, sort_keys=True)}))


def parity(pipeline: Pipeline, regressor: OnnxRegressor, features: pd.DataFrame) -> float:
    """Largest difference between scikit-learn's and ONNX's scores of `features`, of rows that have any."""
    expected = np.clip(pipeline.predict(to_matrix(features, regressor.columns)), 0, 1)
    return float(np.nanmax(np.abs(expected - regressor.predict(features))))


def _clip(model: onnx.ModelProto) -> None:
    """End the graph in a clip to [0, 1]: boosted trees and ridge regressions go beyond."""
    graph = model.graph
    bounds = {"low": np.float32(0), "high": np.float32(1)}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in bounds.items())
    graph.node.append(helper.make_node("Clip", [graph.output[0].name, *bounds], ["score"], name="clip"))
    graph.output[0].name = "score"
    imports = {entry.domain: entry.version for entry in model.opset_import}  # skl2onnx may name a domain twice
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in sorted(imports.items()))
