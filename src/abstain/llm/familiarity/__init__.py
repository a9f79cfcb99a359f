"""Self-Familiarity (Luo et al., "Zero-Resource Hallucination Prevention for Large Language Models"): whether the base
model knows the concepts of an instruction, before it answers.

See docs/methods/self-familiarity.md.
"""
