"""Evaluation: likelihood bounds and exact likelihoods."""
