"""The gate server's page for people: what is live, how it does, answers to try and to review."""
