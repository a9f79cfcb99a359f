"""The stages of dvc.yaml, one module each, and what they share."""
