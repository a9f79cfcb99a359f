"""From labels and features to a probe, a threshold and an evaluation."""
