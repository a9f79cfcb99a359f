"""What stages share: start and progress, the artifacts that they read and write."""
