"""A declared experiment (studies/*.yaml): the tables of Zhang et al. on questions about paragraphs, a grid of cells.

A cell is one base model under one perturbation: answers, features, regressors, metrics. The results of models are in
the feature cache, so a cell that was cut off continues where it stopped, and two cells share what they have in common.
"""
