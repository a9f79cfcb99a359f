"""The base model: prompts, requests, and one engine that answers them all."""
