"""Export of a run as training data."""
