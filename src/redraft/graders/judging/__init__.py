"""Graders that ask a model: what a judge is shown, how it is asked, and how its answer is read."""
