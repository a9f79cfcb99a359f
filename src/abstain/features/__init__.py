"""What the base model said, kept by content, and who computes what is missing."""
