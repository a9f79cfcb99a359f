"""What all ONNX files here share: a session on one core, metadata, and bytes that depend on the content alone."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnxruntime


def open_session(content: bytes) -> onnxruntime.InferenceSession:
    """A session on one core, which a service's other threads leave alone."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def to_bytes(model: onnx.ModelProto, metadata: Mapping[str, str]) -> bytes:
    """The file of `model`, with `metadata` in place of its own; equal ones are equal bytes."""
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, dict(sorted(metadata.items())))
    return bytes(model.SerializeToString(deterministic=True))
