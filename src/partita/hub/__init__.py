"""Weights from elsewhere: state dicts of the reference implementations."""
