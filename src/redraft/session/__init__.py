"""A refinement from its arguments to its result: the models, graders and limits that its calls
share, and what carries out each step.
"""
