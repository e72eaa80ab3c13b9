"""Data types shared by all packages: batches and their layouts, losses, estimates, prompts."""
