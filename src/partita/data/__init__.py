"""Data: text and tokenizers."""
