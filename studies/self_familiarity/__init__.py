"""The study of Self-Familiarity (Luo et al.): `studies/self_familiarity.yaml`."""

from studies.self_familiarity.study import load_study

__all__ = ["load_study"]
