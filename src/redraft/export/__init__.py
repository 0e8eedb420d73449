"""Export: a finished run as training data."""
