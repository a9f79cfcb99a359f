"""Schemas of params.yaml, the environment and other YAML files: names, types and bounds, without values.

DVC records the values that a stage reads from params.yaml, so this package is not a dependency of a stage: it must not
provide, change or compute a value that a result depends on.
"""
