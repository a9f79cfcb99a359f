"""Shared code of stages: start and progress, the artifacts that they read and write."""
