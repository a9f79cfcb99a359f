"""DVC stage `export_onnx`: the served scorer as ONNX files, checked against the fitted models.

The probe is always exported, whichever scorer is served. Its file is the head of the bundle: it contains the metadata
of the base model's inputs, of the served scorer, its threshold and its calibration, and the checksums of the other
files.
"""

import hashlib
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from abstain.config.params import Params
from abstain.config.settings import load_settings
from abstain.core import paths
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.files import write_atomically
from abstain.core.scorer_names import FUSIONS, PROBE, TEXT_SIMILARITY, WITH_MODEL, WRITER
from abstain.knowledge.retrieval.encoder import EMBEDDED_ENCODER, SentenceEncoder
from abstain.learning.estimators.fusion import Fusion
from abstain.learning.estimators.onnx_logistic import OnnxLogistic, fusion_to_onnx, logistic_to_onnx
from abstain.learning.estimators.onnx_probe import OnnxProbe, export_probe, measure_parity
from abstain.learning.estimators.parity import MAX_PARITY
from abstain.learning.estimators.probe_registry import load_probe
from abstain.learning.estimators.summaries import ScorerChoice
from abstain.llm.engine.loading import find_model
from abstain.stages.export_onnx.metadata import make_metadata
from abstain.stages.shared import artifacts
from abstain.stages.shared.states import load_labelled_states, read_base_model

N_PARITY_ROWS = 256
"""Number of random rows on which the file of a logistic regression is compared with the fitted one."""


@dataclass(frozen=True)
class Parity:
    """Largest differences between files and what was fitted: of all components, and of each."""

    max_abs_difference: float
    by_component: dict[str, float]


def stage(params: Params) -> None:
    """Export the served scorer.

    Raises:
        AbstainError: A file differs too much from the fitted model.
    """
    served = ScorerChoice.model_validate(artifacts.read_json(paths.SCORER_CHOICE))
    files, differences = _export_components(served)
    with artifacts.atomic_folder(paths.ONNX_PARTS) as folder:
        for name, content in files.items():
            write_atomically(folder / f"{name}.onnx", content)
    probe = load_probe(paths.PROBE)
    threshold = artifacts.read_json(paths.THRESHOLD)
    scorer = {
        "name": served.name,
        "forward_tokens": served.forward_tokens,
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        "models": _list_models(params, served),
        "perturbation": params.perturbation.model_dump(),
    }
    metadata = make_metadata(
        params,
        model_revision=read_base_model().rpartition("@")[2],
        scorer=scorer,
        threshold=threshold["threshold"],
        guarantee=threshold["guarantee"],
        calibration=artifacts.read_json(paths.CALIBRATION),
    )
    export_probe(probe, paths.ONNX, metadata)
    differences = {
        PROBE: measure_parity(probe, OnnxProbe(paths.ONNX)),
        **differences,
        **_measure_fusion_parity(served, files),
    }
    name, difference = max(differences.items(), key=lambda item: item[1])
    print(f"largest difference between ONNX and what was fitted: {difference:.2g} ({name})")
    if not all(value <= MAX_PARITY for value in differences.values()):
        raise AbstainError(
            Code.EXPORT_DIFFERS,
            f"{name}: ONNX and what was fitted differ by {difference:.2g}, more than {MAX_PARITY:g}: this export "
            "cannot be trusted",
        )
    artifacts.write_json(paths.PARITY, asdict(Parity(difference, differences)))


def _list_models(params: Params, served: ScorerChoice) -> dict[str, tuple[str, str]]:
    """Return name and revision of each model beside the base model that the served scorer runs, by its user."""
    models = {name: getattr(params.scorers, f"{name}_model") for name in WITH_MODEL if name in served.components}
    models["perturbation"] = params.perturbation.model if params.perturbation.n_copies else None
    settings = load_settings()
    revisions = {user: (name, find_model(name, settings).revision) for user, name in models.items() if name}
    if TEXT_SIMILARITY in served.components:
        revisions[TEXT_SIMILARITY] = (EMBEDDED_ENCODER, SentenceEncoder().identity)
    return revisions


def _export_components(served: ScorerChoice) -> tuple[dict[str, bytes], dict[str, float]]:
    """Return the ONNX files of the served scorer besides the probe, by name, and their largest differences."""
    files: dict[str, bytes] = {}
    differences: dict[str, float] = {}
    generator = np.random.default_rng(0)
    regressors = artifacts.read_json(paths.REGRESSOR_SUMMARY)["regressors"]
    for name in served.components:
        if name in regressors:
            files[name] = (paths.REGRESSORS / f"{name}.onnx").read_bytes()
            differences[name] = regressors[name]["parity"]
        elif name == WRITER:
            writer = artifacts.read_json(paths.WRITER)
            files[name] = logistic_to_onnx(writer["coefficient"], writer["intercept"], writer)
            inputs = generator.uniform(-0.5, 1, (N_PARITY_ROWS, len(writer["coefficient"])))
            expected = 1 / (1 + np.exp(-(inputs @ np.array(writer["coefficient"]) + writer["intercept"])))
            differences[name] = _measure_difference(files[name], inputs, expected)
    if served.name in FUSIONS:
        name = served.name
        fusion = Fusion.from_dict(artifacts.read_json(paths.FUSIONS)[name])
        files[name] = fusion_to_onnx(fusion)
        inputs = generator.random((N_PARITY_ROWS, len(fusion.names)))
        inputs[generator.random(inputs.shape) < 0.1] = np.nan
        differences[name] = _measure_difference(
            files[name], inputs, fusion.score(pd.DataFrame(inputs, columns=fusion.names))
        )
    return files, differences


def _measure_fusion_parity(served: ScorerChoice, files: dict[str, bytes]) -> dict[str, float]:
    """Measure the largest difference of a fusion's confidences of real answers, by its files and the probe's file."""
    if served.name not in FUSIONS:
        return {}
    frame, states = load_labelled_states()
    rows = frame[frame["split"] != "train"]
    scores = artifacts.read_signals("asked").reindex(rows["interaction_id"])
    scores[PROBE] = OnnxProbe(paths.ONNX).predict(states.subset(rows.index)).astype(float)
    expected = pd.read_parquet(paths.SERVED_SCORES).set_index("interaction_id").loc[scores.index, "confidence"]
    fusion = OnnxLogistic(files[served.name])
    confidences = fusion.predict(scores[fusion.metadata["names"]].to_numpy(float))
    return {f"{served.name}, of its files": float(np.abs(confidences - expected.to_numpy()).max(initial=0.0))}


def _measure_difference(content: bytes, inputs: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(OnnxLogistic(content).predict(inputs) - expected).max())


if __name__ == "__main__":
    artifacts.run_stage(stage)
