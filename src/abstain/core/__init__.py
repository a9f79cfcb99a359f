"""What everything rests on: errors, contracts, paths, whole files, JSON Lines."""
