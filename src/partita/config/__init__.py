"""The sections of a recipe: everything that can be chosen about a run."""
