"""Embeddings, vector indexes, and search among the chunks that an asker may read."""
