"""Probes and rows to try them on, and an ONNX file with a probe's inputs and outputs that exports in no time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor

from abstain.config.params import Architecture
from abstain.learning.estimators.probe_registry import PROBES
from abstain.learning.estimators.probes.base import Probe
from abstain.learning.estimators.training_rows import TrainingRows
from tests.checkout import shipped_params

D = 16
EVERY_KIND: tuple[Architecture, ...] = tuple(
    {entry.probe_class: name for name, entry in reversed(PROBES.items())}.values()
)
"""One architecture of every class of probes: those of one class differ in their parameters alone."""
SHORTENED = {"folds": 4, "hidden": 16, "dropout": 0.2, "learning_rate": 0.01, "max_epochs": 12, "patience": 4}
PARAMS = shipped_params().probe.model_copy(update={"architectures": tuple(PROBES), **SHORTENED})


def ragged(*lengths: int, seed: int = 1) -> list[Tensor]:
    """States far from zero and from unit variance."""
    generator = torch.Generator().manual_seed(seed)
    return [5 + 3 * torch.randn(length, D, generator=generator) for length in lengths]


def build_probe(architecture: Architecture, seed: int = 0, dropout: float = 0.3) -> Probe:
    """Random weights, large enough for confidences far from a half, and the mean and deviation of `ragged`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probe = PROBES[architecture].probe_class.from_params(D, PARAMS.model_copy(update={"dropout": dropout}))
        states = [5 + 3 * torch.randn(40, D)]
        probe.fit_preprocessing(TrainingRows(states, torch.ones(1, dtype=torch.int64), torch.ones(1)))
        with torch.no_grad():
            for weight in probe.parameters():
                weight.mul_(3)
    probe.architecture = architecture
    return probe.eval()


def make_planted(rows: int, seed: int, strength: float = 1.5) -> TrainingRows:
    """Ragged noise; in the right answers one direction is raised at one token somewhere, in others lowered."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.zeros(D)
    direction[3] = 4 * strength
    correct = torch.randint(0, 2, (rows,), generator=generator)
    states = []
    for right in correct.tolist():
        length = int(torch.randint(1, 12, (1,), generator=generator))
        row = 10 + torch.randn(length, D, generator=generator)
        row[int(torch.randint(0, length, (1,), generator=generator))] += direction * (1 if right else -1)
        states.append(row)
    return TrainingRows(states, correct, torch.ones(rows))


def make_groups(rows: int, groups: int = 12) -> np.ndarray:
    """Names of `groups` groups in turns."""
    return np.array([f"g-{row % groups}" for row in range(rows)], dtype=object)


class Watched(Sequence):
    """States that are not in memory: what is read is counted, and nothing but single rows can be had."""

    def __init__(self, rows: Sequence[Tensor]) -> None:
        self._rows = rows
        self.lengths = np.array([len(row) for row in rows])
        self.read: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensor:
        assert isinstance(index, int)
        if index >= len(self._rows):
            raise IndexError
        self.read[index] += 1
        return self._rows[index].clone()


def weights(probe: Probe) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in probe.state_dict().values()])


def write_mean_probe(
    file: Path, width: int, metadata: dict[str, str], shapes: Mapping[str, Sequence[str | int]] | None = None
) -> Path:
    """`confidence` = sigmoid(mean over time and width of `states`), or of the first input of other `shapes`."""
    shapes = shapes or {"states": ["tokens", width]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("ReduceMean", [inputs[0].name], ["mean"]),
        helper.make_node("Sigmoid", ["mean"], ["confidence"]),
    ]
    outputs = [helper.make_tensor_value_info("confidence", TensorProto.FLOAT, [1, 1])]
    graph = helper.make_graph(nodes, "mean", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, metadata)
    onnx.save(model, file)
    return file
