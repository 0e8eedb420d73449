"""Validation cards: what was measured of a grader, where it is stored, and whether the grader may be trusted for it."""
