"""The probe as an ONNX file: export, metadata, and the session that serves it.

`torch.onnx.export(dynamo=True)` keeps the time axis dynamic only for the first LSTM exported in a process:
call `export_probe` once a process (a DVC stage is one), and believe only `parity`, which tries ragged shapes.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor

from abstain.errors import AbstainError
from abstain.files import write_atomically
from abstain.models.probes.base import Probe, confidence
from abstain.models.rows import pad

OPSET = 20


class OnnxProbe:
    """A served probe: its metadata, and confidences by ONNX Runtime on one core."""

    def __init__(self, file: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(file.read_bytes(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's own kinds share no base class
            raise AbstainError(f"{file} is no readable ONNX probe ({type(error).__name__}): fetch it again") from None
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)

    @property
    def width(self) -> int:
        """d, the width of the states that the probe reads."""
        return int(self._session.get_inputs()[0].shape[2])

    def confidence(self, rows: Iterable[Tensor]) -> np.ndarray:
        """Confidences, float32 (rows,), of ragged `rows` of float32 states, each (L + 1, d); one row in memory.

        Each is scored alone: nothing is padded, an answer's states stay in the processor's cache, and what an answer
        gets does not depend on the others. In batches it takes longer.
        """
        alone = [self.run(row.unsqueeze(0), torch.tensor([len(row)])) for row in rows]
        return np.concatenate(alone) if alone else np.empty(0, np.float32)

    def run(self, states: Tensor, lengths: Tensor) -> np.ndarray:
        """Confidences, float32 (B,), of a padded batch: `states`, float32 (B, T, d), and `lengths`, int64 (B,)."""
        inputs = {"states": states.numpy(), "lengths": lengths.numpy()}
        confidences: np.ndarray = self._session.run(None, inputs)[0]
        return confidences


class _Served(torch.nn.Module):
    """The probe as it is served, with its softmax: what is exported gives confidences, not logits."""

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe = probe.served()

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        return confidence(self.probe(states, lengths))


def export_probe(probe: Probe, file: Path, metadata: Mapping[str, str]) -> None:
    """Write `probe` to `file`: inputs `states` (batch, time, d), `lengths` (batch,); output `confidence` (batch,)."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    example = (torch.zeros(2, 5, probe.width), torch.tensor([5, 3]))
    axes = ({0: "batch", 1: "time"}, {0: "batch"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about its own insides
        program = torch.onnx.export(
            _Served(probe).eval(),
            example,
            input_names=["states", "lengths"],
            output_names=["confidence"],
            dynamic_shapes=axes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        # Stack traces with this machine's paths: the same probe must be the same bytes wherever it is exported.
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    _save(model, file, {"architecture": probe.architecture, **metadata})


def stamp(source: Path, target: Path, metadata: Mapping[str, str]) -> None:
    """Copy an ONNX file, adding `metadata` to what it carries; the graph and its weights stay as they are."""
    model = onnx.load(source)
    carried = {entry.key: entry.value for entry in model.metadata_props}
    _save(model, target, {**carried, **metadata})


def parity(probe: Probe, served: OnnxProbe, seed: int = 0) -> float:
    """Largest difference between torch's and ONNX's confidences of ragged rows, in batches and alone; nan stays nan."""
    generator = torch.Generator().manual_seed(seed)
    differences = []
    for batch, longest in [(1, 1), (1, 17), (2, 5), (3, 113), (16, 50), (33, 2)]:
        lengths = torch.randint(1, longest + 1, (batch,), generator=generator)
        rows = [
            probe.mean + probe.scale * torch.randn(int(length), len(probe.mean), generator=generator)
            for length in lengths
        ]
        with torch.inference_mode():
            expected = confidence(probe.eval()(*pad(rows))).numpy()
        differences += [np.abs(expected - given).max() for given in (served.run(*pad(rows)), served.confidence(rows))]
    return float(np.max(differences))


def _save(model: onnx.ModelProto, file: Path, metadata: Mapping[str, str]) -> None:
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, dict(sorted(metadata.items())))
    write_atomically(file, model.SerializeToString(deterministic=True))
