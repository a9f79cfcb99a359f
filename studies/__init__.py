"""A declared study (studies/*.yaml): the tables of Zhang et al. on questions about paragraphs, a grid of cells.

A cell is one base model under one perturbation: answers, features, regressors, figures. What the models say is found in
the feature cache, so a cell that was cut off goes on where it was, and two cells share what they have in common.
"""
