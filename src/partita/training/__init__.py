"""Training: the loop and the moving average of weights."""
