"""The gate server's page for people: the live version, its statistics, and forms to try and to review answers."""
