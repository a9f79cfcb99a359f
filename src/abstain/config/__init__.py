"""What params.yaml, the environment and other YAML files may say: names, types and bounds, no value of their own.

DVC records the values that a stage reads of params.yaml, so this package is no dependency of a stage: nothing in it may
give, change or compute a value that a result depends on.
"""
