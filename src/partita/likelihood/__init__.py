"""Likelihood of a model that is handed in: bounds, and exact values."""
