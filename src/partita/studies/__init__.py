"""Studies: speed, comparisons, baselines and reports."""
