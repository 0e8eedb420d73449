"""A refinement from its arguments to its result: the models, graders and limits that its calls
share, and what carries out each step.

`api` makes `options` of the settings, opens a `session`, and has `refinement` do the work. A
session is made of its `models`, with the clients of each, and of the `panel` of each task: its
graders, and who does what. `perform` does one step and gives its record; `reservations` keep money
and time for the grades of a text.
"""
