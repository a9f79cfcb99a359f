"""The stages of dvc.yaml, one folder each, and what they share."""
