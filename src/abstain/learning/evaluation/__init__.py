"""Scorers compared on reviewed answers: leaderboard, slices, selective prediction, ablations, audits."""
