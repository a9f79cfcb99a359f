"""The stages of dvc.yaml, one folder each, and their shared code."""
