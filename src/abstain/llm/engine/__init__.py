"""The engine that runs requests through the base model: requests, planner, prefix tree, decoder, generation."""
