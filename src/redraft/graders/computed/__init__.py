"""Computed graders: they ask no model (`embedding` asks an endpoint for vectors) and give the same
feedback every time.

Each is loaded when it is first made; `catalog.COMPUTED_GRADERS` lists them. None of their reasons
and actions quotes the reference. The graders of code are in `sandbox.graders`.
"""
