"""Paths in a workspace, relative to its root, shared by stages and tasks."""

from pathlib import Path

DATA = Path("data")
PARAMS = Path("params.yaml")
SOURCES = Path("sources.yaml")
REGISTRY = Path("registry.json")
APPROVALS = Path("approvals")
SHADOW_POINTER = Path("shadow.json")

ARTIFACTS = Path("artifacts")
VALIDATION = ARTIFACTS / "validation.json"
QUALITY = ARTIFACTS / "quality.json"
VALIDATION_PAGE = ARTIFACTS / "validation.html"
DATASET = ARTIFACTS / "dataset.parquet"
DATASET_SUMMARY = ARTIFACTS / "dataset.json"
FEATURES = ARTIFACTS / "features.npy"
FEATURES_SUMMARY = ARTIFACTS / "features.json"
SIGNALS = ARTIFACTS / "signals.parquet"
NLL_FEATURES = ARTIFACTS / "nll_features.parquet"
NLL_SUMMARY = ARTIFACTS / "nll_features.json"
REGRESSORS = ARTIFACTS / "regressors"
REGRESSOR_SCORES = ARTIFACTS / "regressor_scores.parquet"
REGRESSOR_SUMMARY = ARTIFACTS / "regressors.json"
PROBES = ARTIFACTS / "probes"
PROBE = ARTIFACTS / "probe.safetensors"
OUT_OF_FOLD = ARTIFACTS / "out_of_fold.parquet"
PROBE_CHOICE = ARTIFACTS / "probe_choice.json"
WRITER = ARTIFACTS / "writer.json"
FUSIONS = ARTIFACTS / "fusions.json"
FUSION_OUT_OF_FOLD = ARTIFACTS / "fusion_out_of_fold.parquet"
SCORER_CHOICE = ARTIFACTS / "scorer_choice.json"
SERVED_SCORES = ARTIFACTS / "served_scores.parquet"
ABLATIONS = ARTIFACTS / "ablations.json"
CALIBRATION = ARTIFACTS / "calibration.json"
EVALUATION = ARTIFACTS / "evaluation.json"
TRAINING = ARTIFACTS / "training.csv"
THRESHOLD = ARTIFACTS / "threshold.json"
ONNX = ARTIFACTS / "probe.onnx"
ONNX_PARTS = ARTIFACTS / "parts"
"""The ONNX files of the components that the live scorer needs in addition to the probe."""
PARITY = ARTIFACTS / "parity.json"
METRICS = ARTIFACTS / "metrics.json"
SCORES = ARTIFACTS / "scores.parquet"
PLOTS = ARTIFACTS / "plots"
REPORT = ARTIFACTS / "report"

RELEASE = Path("release")
"""The promoted bundle, one immutable DVC-tracked folder per version."""
RELEASED_ONNX = RELEASE / "probe.onnx"
RELEASED_PARTS = RELEASE / "parts"
SHADOW = Path("shadow")
"""The bundle of the shadow candidate, a DVC-tracked folder."""
