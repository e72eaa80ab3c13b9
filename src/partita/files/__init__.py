"""Files: written whole or not at all, read as what strangers wrote, fetched by name."""
