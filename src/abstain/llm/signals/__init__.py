"""Confidence signals of the base model and of auxiliary models, behind one scorer protocol."""
