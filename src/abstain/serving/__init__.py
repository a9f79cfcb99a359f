"""Scoring of answers with a version, and the gate that shows them or abstains."""
