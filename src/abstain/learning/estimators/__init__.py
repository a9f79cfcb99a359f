"""Probes, correctness regressors and fusion: fitting, files and ONNX export."""
