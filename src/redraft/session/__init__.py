"""A refinement from its arguments to its result: the models, graders and limits that its calls
share, and what carries out each step.

`api` makes `options` of the settings, and `refinement.prepare_refinement` opens a `session` and
makes a `Refinement`: the trace that the work begins with, the plan, and the performer. A session is
made of its `models`, with the clients of each, and of the `panel` of each task: its graders, and
who does what. `refinement.RefinementRun` has the engine (`loop.engine`) ask the plan for steps
until it stops. `perform` does one step and gives its record; `reservations` keep money and time for
the grades of a text.
"""
