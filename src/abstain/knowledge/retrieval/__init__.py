"""Embeddings, vector indexes, and search among the chunks that a user may read."""
