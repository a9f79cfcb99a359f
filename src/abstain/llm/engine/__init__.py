"""One way through the base model: requests, planner, prefix tree, decoder, generation."""
