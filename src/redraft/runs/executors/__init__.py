"""Executors: where and how the rows of a run are worked on."""
