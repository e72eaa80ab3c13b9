"""What rooms hand each other: batches and their layouts, losses, estimates, prompts."""
