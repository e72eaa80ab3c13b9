"""Trained models: loading and saving, run folders, names, published checkpoints."""
