"""Show or abstain: scoring with a released version."""
