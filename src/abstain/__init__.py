"""Abstain: should this RAG answer be shown, or withheld?"""

__version__ = "0.1.0"
