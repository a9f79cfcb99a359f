"""The tables of Zhang et al. on questions about paragraphs, declared as a grid of cells.

A cell is one base model under one perturbation: answers, features, regressors, metrics. Two cells share in the feature
cache what they have in common.
"""

from studies.nll_perturbation.experiment import load_study

__all__ = ["load_study"]
