"""`python -m abstain.stages.export_onnx`."""
