"""The study of the Yes-score (Baak 2024): `studies/yes_score.yaml`."""

from studies.yes_score.study import load_study

__all__ = ["load_study"]
