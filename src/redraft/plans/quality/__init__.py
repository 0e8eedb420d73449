"""The measurement model: what noisy scores say about the true quality of answers.

README.md beside this file writes the model in symbols, names every approximation, and works three
examples. Nothing here reads a clock, draws a random number, or does input or output.
"""
