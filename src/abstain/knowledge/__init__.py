"""The knowledge base: documents are read, cut into chunks, embedded and retrieved."""
