"""DVC stage `export_onnx`: the probe as one ONNX file with the metadata of its inputs, checked against torch."""

import json

from abstain.config.params import Params
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.contracts import CONTRACT_VERSION
from abstain.core.errors import AbstainError
from abstain.learning.estimators.onnx_probe import OnnxProbe, export_probe, parity
from abstain.learning.estimators.zoo import load_probe
from abstain.llm.engine.prompts import load_layout
from abstain.llm.engine.requests import chosen_layer
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import read_base_model

GUARANTEE = ("guaranteed", "metric", "target", "confidence", "message")


def stage(params: Params) -> None:
    probe = load_probe(paths.PROBE)
    threshold = artifacts.read_json(paths.THRESHOLD)
    metadata = {
        "version": "unreleased",  # promotion stamps the version; the graph stays unchanged
        "contract": str(CONTRACT_VERSION),
        "model": params.llm.model,
        "model_revision": read_base_model().rpartition("@")[2],
        "layout": params.llm.layout,
        "layout_digest": load_layout(params.llm.layout).digest,
        "layer": str(chosen_layer(params.llm)),
        "site": params.llm.site,
        "too_long": params.llm.too_long,
        "threshold": repr(threshold["threshold"]),
        "guarantee": json.dumps({key: threshold[key] for key in GUARANTEE}, sort_keys=True),
        "calibration": json.dumps(artifacts.read_json(paths.CALIBRATION), sort_keys=True),
    }
    export_probe(probe, paths.ONNX, metadata)
    difference = parity(probe, OnnxProbe(paths.ONNX))
    print(f"largest difference between torch and ONNX: {difference:.2g}")
    if not difference <= params.gate.max_parity:
        raise AbstainError(
            Code.EXPORT_DIFFERS,
            f"ONNX and torch differ by {difference:.2g}, more than gate.max_parity = {params.gate.max_parity:g}: "
            "this export cannot be trusted",
        )
    artifacts.write_json(paths.PARITY, {"max_abs_difference": difference})


if __name__ == "__main__":
    artifacts.run(stage)
