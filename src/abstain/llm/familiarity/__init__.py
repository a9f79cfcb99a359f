"""Self-Familiarity: whether the base model knows the concepts of an instruction, before it answers.

Luo et al., "Zero-Resource Hallucination Prevention for Large Language Models"; see docs/methods/self-familiarity.md.
"""
