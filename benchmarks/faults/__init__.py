"""Small faults: which there are, and which tests run their lines (for `benchmarks/mutants.py`)."""
