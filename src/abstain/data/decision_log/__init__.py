"""What the gate decided of each answer and what users said of it, in one database that server processes share."""
