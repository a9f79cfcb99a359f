"""Perturbed contexts (Zhang et al., "An Automatic Method to Estimate Correctness of RAG", section 3): where, when, how.

See docs/methods/perturbation.md and docs/decisions/073.
"""
