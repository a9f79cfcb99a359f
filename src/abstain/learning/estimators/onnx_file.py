"""Shared functions for ONNX files: a session on one core, metadata, and bytes that depend only on the content."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnxruntime


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
