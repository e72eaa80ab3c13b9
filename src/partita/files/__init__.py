"""Files: written atomically, read without trust, downloaded by name."""
