"""The same numbers, sooner: steps of samplers and of training as captured or compiled programs."""
