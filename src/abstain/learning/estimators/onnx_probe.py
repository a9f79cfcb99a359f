"""The probe as an ONNX file: export, metadata, and the session that serves it.

Notes:

* The graph takes one answer. Served answers come one by one, most nodes of a batched graph only mask padding, and nodes
  are expensive in comparison with a probe's few products.
* Each probe names its few nodes itself (`Probe.to_graph`). `torch.onnx.export` takes seconds for an LSTM, and keeps the
  time axis dynamic only for the first one that a process exports.
* Verify an export with `measure_parity`, which tries many lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import torch
from onnx import numpy_helper
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.learning.estimators.onnx_file import IR_VERSION, OPSET, open_session, to_bytes
from abstain.learning.estimators.probes.base import Probe, logits_to_confidence
from abstain.learning.estimators.training_rows import pad

INPUT, OUTPUT = "states", "confidence"


class OnnxProbe:
    """An exported probe, run by ONNX Runtime on one core.

    Args:
        file: The ONNX file.

    Attributes:
        metadata: The metadata of the file.

    Raises:
        AbstainError: The file cannot be read, or is no probe of this version.
    """

    def __init__(self, file: Path) -> None:
        try:
            self._session = open_session(file.read_bytes())
        except Exception as error:  # ONNX Runtime's errors have no common base class
            raise AbstainError(
                Code.BAD_ARTIFACT, f"{file} is no readable ONNX probe ({type(error).__name__}): fetch it again"
            ) from None
        inputs = self._session.get_inputs()
        if [(tensor.name, len(tensor.shape)) for tensor in inputs] != [(INPUT, 2)]:
            described_inputs = ", ".join(f"{tensor.name} ({', '.join(map(str, tensor.shape))})" for tensor in inputs)
            raise AbstainError(
                Code.VERSION_MISMATCH,
                f"{file} is no ONNX probe of this version, it reads {described_inputs}: run `abstain retrain`, or "
                "fetch a release that this version made",
            )
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)

    @property
    def width(self) -> int:
        """d, the width of the states that the probe reads."""
        return int(self._session.get_inputs()[0].shape[1])

    def predict(self, rows: Iterable[Tensor]) -> np.ndarray:
        """Compute confidences, with one row in memory.

        Each row is scored separately: nothing is padded, an answer's states stay in the processor's cache, and its
        score does not depend on the other rows.

        Args:
            rows: Ragged float32 states, each (L + 1, d).

        Returns:
            float32 (rows,) in [0, 1].
        """
        run = self._session.run
        return np.array([run([OUTPUT], {INPUT: row.numpy()})[0].item() for row in rows], np.float32)


def export_probe(probe: Probe, file: Path, metadata: Mapping[str, str]) -> None:
    """Export a probe as an ONNX file.

    The input `states` is float32 (tokens, d), the states of one answer; the output `confidence` is (1, 1).

    Args:
        probe: The fitted probe.
        file: Path of the new file.
        metadata: Metadata of the file; the architecture is added.
    """
    graph = probe.to_graph()
    model = onnx.parser.parse_model(f"""
        <ir_version: {IR_VERSION}, opset_import: ["" : {OPSET}]>
        probe (float[tokens, {probe.width}] {INPUT}) => (float[1, 1] {OUTPUT}) {{
            {graph.nodes}
            {OUTPUT} = Sigmoid (logit)
        }}
    """)
    model.graph.initializer.extend(
        numpy_helper.from_array(constant.detach().numpy(), name) for name, constant in sorted(graph.constants.items())
    )
    onnx.checker.check_model(model, full_check=True)
    write_atomically(file, to_bytes(model, {"architecture": probe.architecture, **metadata}))


def copy_with_metadata(source: Path, target: Path, metadata: Mapping[str, str]) -> None:
    """Copy an ONNX file and add metadata; the graph and its weights stay unchanged.

    Args:
        source: Path of the file.
        target: Path of the copy.
        metadata: Keys to add or replace.
    """
    model = onnx.load(source)
    existing = {entry.key: entry.value for entry in model.metadata_props}
    write_atomically(target, to_bytes(model, {**existing, **metadata}))


def measure_parity(probe: Probe, exported: OnnxProbe, seed: int = 0) -> float:
    """Measure the largest difference between the confidences of an exported probe and those of torch.

    Random ragged rows of many lengths are scored, by torch in batches.

    Args:
        probe: The fitted probe.
        exported: The exported probe.
        seed: Seed of the random states.

    Returns:
        The largest absolute difference; nan if a confidence is nan.
    """
    generator = torch.Generator().manual_seed(seed)
    differences = []
    probe.eval()
    for batch, max_length in [(1, 1), (1, 17), (2, 5), (3, 300), (16, 50), (33, 2)]:
        lengths = torch.randint(1, max_length + 1, (batch,), generator=generator)
        rows = [
            probe.mean + probe.scale * torch.randn(int(length), len(probe.mean), generator=generator)
            for length in lengths
        ]
        with torch.inference_mode():
            confidence = logits_to_confidence(probe(*pad(rows))).numpy()
        differences.append(np.abs(confidence - exported.predict(rows)).max())
    return float(np.max(differences))
