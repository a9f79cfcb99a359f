"""Content-addressed feature cache, and the shards of work that fill it."""
