"""Shared functions for ONNX files: a session on one core, metadata, and bytes that depend only on the content."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime

OPSET = 20
IR_VERSION = 10


def open_session(content: bytes) -> onnxruntime.InferenceSession:
    """Open an ONNX model on one core, so that it does not compete with the other threads of a service.

    Args:
        content: The ONNX file.

    Returns:
        The session.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run_on_random_inputs(content: bytes, n_rows: int) -> np.ndarray:
    """Run a model with one two-dimensional input on random numbers from 0 to 1, the same on every machine.

    Args:
        content: The ONNX file.
        n_rows: Number of rows of the input.

    Returns:
        Its first output, float64 (n_rows * columns,).
    """
    session = open_session(content)
    (described,) = session.get_inputs()
    dtype = np.float64 if described.type == "tensor(double)" else np.float32
    inputs = np.random.default_rng(0).random((n_rows, described.shape[1])).astype(dtype)
    return np.asarray(session.run(None, {described.name: inputs})[0], np.float64).ravel()


def to_bytes(model: onnx.ModelProto, metadata: Mapping[str, str]) -> bytes:
    """Serialize a model; equal models and metadata give equal bytes.

    Args:
        model: The model. Its metadata is replaced.
        metadata: The new metadata.

    Returns:
        The ONNX file.
    """
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, dict(sorted(metadata.items())))
    return bytes(model.SerializeToString(deterministic=True))
