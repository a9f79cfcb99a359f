"""Statistics of what is live: whether the promise is kept, what is expected without labels, and what has drifted."""
