"""Fast execution with the same results: captured and compiled steps of sampling and training."""
