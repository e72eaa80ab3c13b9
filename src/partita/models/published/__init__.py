"""Published checkpoints of the reference implementations, read as data, as models of ours."""
