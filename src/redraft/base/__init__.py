"""What all parts stand on: reading and writing JSON, texts, checks of arguments, threads. It knows
nothing of refinements.
"""
