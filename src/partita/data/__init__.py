"""Data: documents from files, tokenizers, tokens on disk."""
