"""Studies: the tables of papers, reproduced on their data or on a project's reviewed answers.

`studies/NAME.yaml` declares a study, and its `kind` names the package here that computes it (`study.py`). Results of
models are in the feature cache, and finished parts are kept, so a study that was cut off continues where it stopped.
"""
