"""A refinement from its arguments to its result: the session whose models, graders and limits
calls share, and what carries out each step.
"""
