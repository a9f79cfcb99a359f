"""Shared foundations: errors, contracts, paths, atomic files, JSON Lines."""
