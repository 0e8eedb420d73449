"""Validation of graders: their verdicts compared with the labels of people, the measures, and the validation card."""
