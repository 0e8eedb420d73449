"""What all other packages use: JSON, texts, checks of arguments, threads, local pages. It knows
nothing of refinements.
"""
