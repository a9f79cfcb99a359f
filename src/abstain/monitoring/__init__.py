"""Statistics of what is live: whether the guarantee holds, what is expected without labels, and what has drifted."""
