"""Handbook pages: parsing, sections, chunks, versions."""
