"""A correctness regressor as an ONNX file: conversion, metadata, and the session that serves it.

Notes:

* Fitted and loaded regressors predict only through the ONNX graph; scikit-learn's predictions are for `measure_parity`.
  The graph imputes medians and ends in a clip to [0, 1], so it is complete. No pickle.
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
"""Number of rows that are scored at once."""


class OnnxRegressor:
    """A fitted regressor, run by ONNX Runtime on one core.

    Args:
        content: The ONNX file.

    Attributes:
        metadata: The metadata of the file: kind, target, columns, step, training rows, versions.
        kind: Key of `REGRESSOR_ALGORITHMS`.
        target: Name of the correctness score.
        columns: Names of the features, in the order of the input.

    Raises:
        KeyError, ValueError or an error of ONNX Runtime: The file is no regressor.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._session = open_session(content)
        self.metadata: dict[str, Any] = json.loads(self._session.get_modelmeta().custom_metadata_map[HEADER])
        self.kind: str = self.metadata["kind"]
        self.target: str = self.metadata["target"]
        self.columns: tuple[str, ...] = tuple(self.metadata["columns"])
        self._input = self._session.get_inputs()[0].name

    @property
    def n_bytes(self) -> int:
        """The size of the file in bytes."""
        return len(self._content)

    def predict(self, features: pd.DataFrame) -> np.ndarray:
        """Predict correctness scores.

        Args:
            features: (rows, columns) of numbers, selected by name; other columns are ignored. nan is a missing value.

        Returns:
            float64 (rows,) in [0, 1]; nan for a row whose values are all missing.

        Raises:
            AbstainError: A column is missing or has values that are not numbers.
        """
        scores = np.empty(len(features))
        for start in range(0, len(features), BATCH):
            values = to_matrix(features.iloc[start : start + BATCH], self.columns)
            predictions = self._session.run(None, {self._input: values})[0][:, 0]
            scores[start : start + BATCH] = np.where(np.isnan(values).all(axis=1), np.nan, predictions)
        return scores

    def save(self, file: Path) -> None:
        """Write the ONNX file; equal regressors give equal bytes.

        Args:
            file: Path of the new file.
        """
        write_atomically(file, self._content)


def to_onnx_regressor(pipeline: Pipeline, metadata: dict[str, Any]) -> OnnxRegressor:
    """Convert a pipeline to an ONNX regressor.

    Args:
        pipeline: Fitted pipeline of float32 features (rows, columns).
        metadata: JSON values with `kind`, `target`, `columns` and any other metadata; the versions of the converter are
            added.

    Returns:
        The regressor.
    """
    import skl2onnx  # type: ignore[import-untyped]
    import sklearn
    from skl2onnx.common.data_types import FloatTensorType  # type: ignore[import-untyped]

    inputs = [("features", FloatTensorType([None, len(metadata["columns"])]))]
    model = skl2onnx.to_onnx(pipeline, initial_types=inputs, name=HEADER, target_opset=OPSET)
    _append_clip(model)
    versions = {"scikit-learn": sklearn.__version__, "skl2onnx": skl2onnx.__version__}
    return OnnxRegressor(to_bytes(model, {HEADER: json.dumps({**metadata, "versions": versions}, sort_keys=True)}))


def measure_parity(pipeline: Pipeline, regressor: OnnxRegressor, features: pd.DataFrame) -> float:
    """Measure the largest difference between the scores of scikit-learn and of the ONNX file.

    Args:
        pipeline: The fitted pipeline.
        regressor: Its conversion.
        features: (rows, columns); rows without any feature are ignored.

    Returns:
        The largest absolute difference.
    """
    expected = np.clip(pipeline.predict(to_matrix(features, regressor.columns)), 0, 1)
    return float(np.nanmax(np.abs(expected - regressor.predict(features))))


def _append_clip(model: onnx.ModelProto) -> None:
    """Append a clip to [0, 1] to the graph: boosted trees and ridge regressions exceed it."""
    graph = model.graph
    bounds = {"low": np.float32(0), "high": np.float32(1)}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in bounds.items())
    graph.node.append(helper.make_node("Clip", [graph.output[0].name, *bounds], ["score"], name="clip"))
    graph.output[0].name = "score"
    imports = {entry.domain: entry.version for entry in model.opset_import}  # skl2onnx may name a domain twice
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in sorted(imports.items()))
