"""Documents of the knowledge base: parsing, sections, chunks, versions."""
