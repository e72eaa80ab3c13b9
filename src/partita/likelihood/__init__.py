"""Likelihood of a given model: bounds, and exact values."""
