"""The probe as an ONNX file: export, metadata, and the session that serves it.

Notes:

* The graph takes one answer. Served answers come one by one, most nodes of a batched graph only mask padding, and nodes
  are not free beside a probe's few products.
* Computations on weights alone are done at export: by `Probe.served`, and by folding the LSTM's gate reordering.
* `torch.onnx.export(dynamo=True)` keeps the time axis dynamic only for the first LSTM exported in a process, and
  refuses the next: call `export_probe` once a process (a DVC stage is one). Verify an export with `measure_parity`,
  which tries many lengths.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.learning.estimators.onnx_file import open_session, to_bytes
from abstain.learning.estimators.probes.base import Probe, logits_to_confidence
from abstain.learning.estimators.training_rows import pad

OPSET = 20
INPUT, OUTPUT = "states", "confidence"


class OnnxProbe:
    """An exported probe: its metadata, and confidences by ONNX Runtime on one core."""

    def __init__(self, file: Path) -> None:
        try:
            self._session = open_session(file.read_bytes())
        except Exception as error:  # ONNX Runtime's own kinds share no base class
            raise AbstainError(
                Code.BAD_ARTIFACT, f"{file} is no readable ONNX probe ({type(error).__name__}): fetch it again"
            ) from None
        inputs = self._session.get_inputs()
        if [(one.name, len(one.shape)) for one in inputs] != [(INPUT, 2)]:
            reads = ", ".join(f"{one.name} ({', '.join(map(str, one.shape))})" for one in inputs)
            raise AbstainError(
                Code.VERSION_MISMATCH,
                f"{file} is no ONNX probe of this version, it reads {reads}: run `abstain retrain`, or fetch a release "
                "that this version made",
            )
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)

    @property
    def width(self) -> int:
        """d, the width of the states that the probe reads."""
        return int(self._session.get_inputs()[0].shape[1])

    def confidence(self, rows: Iterable[Tensor]) -> np.ndarray:
        """Confidences, float32 (rows,), of ragged `rows` of float32 states, each (L + 1, d); one row in memory.

        Each is scored alone: nothing is padded, an answer's states stay in the processor's cache, and its score does
        not depend on the others.
        """
        run = self._session.run
        return np.array([run([OUTPUT], {INPUT: row.numpy()})[0].item() for row in rows], np.float32)


class _ServingModule(torch.nn.Module):
    """The probe as it is served, of one answer: (tokens, d) to its confidence, (1, 1)."""

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe = probe.to_serving()

    def forward(self, states: Tensor) -> Tensor:
        return self.probe(states, None).sigmoid()  # type: ignore[no-any-return]


def export_probe(probe: Probe, file: Path, metadata: Mapping[str, str]) -> None:
    """Write `probe` to `file`: input `states`, float32 (tokens, d), of one answer; output `confidence`, (1, 1)."""
    from onnxscript.optimizer import optimize  # takes a second to import, and who serves exports nothing

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about its own insides
        program = torch.onnx.export(
            _ServingModule(probe).eval(),
            (torch.zeros(5, probe.width),),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: "tokens"},),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    everything = sys.maxsize  # the largest weights are the ones to fold
    model = optimize(program.model_proto, input_size_limit=everything, output_size_limit=everything)
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        # Stack traces with this machine's paths: the same probe must be the same bytes wherever it is exported.
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    write_atomically(file, to_bytes(model, {"architecture": probe.architecture, **metadata}))


def copy_with_metadata(source: Path, target: Path, metadata: Mapping[str, str]) -> None:
    """Copy an ONNX file, adding `metadata` to what it carries; the graph and its weights stay as they are."""
    model = onnx.load(source)
    carried = {entry.key: entry.value for entry in model.metadata_props}
    write_atomically(target, to_bytes(model, {**carried, **metadata}))


def measure_parity(probe: Probe, served: OnnxProbe, seed: int = 0) -> float:
    """Largest difference between ONNX's confidences of ragged rows and torch's, in batches and alone; nan stays nan."""
    generator = torch.Generator().manual_seed(seed)
    differences = []
    probe.eval()
    for batch, longest in [(1, 1), (1, 17), (2, 5), (3, 300), (16, 50), (33, 2)]:
        lengths = torch.randint(1, longest + 1, (batch,), generator=generator)
        rows = [
            probe.mean + probe.scale * torch.randn(int(length), len(probe.mean), generator=generator)
            for length in lengths
        ]
        with torch.inference_mode():
            together, alone = probe(*pad(rows)), torch.cat([probe(row, None) for row in rows])
        given = served.confidence(rows)
        differences += [np.abs(logits_to_confidence(logits).numpy() - given).max() for logits in (together, alone)]
    return float(np.max(differences))
