"""The loop: records, steps, the trace, and the engine that advances it.

Nothing here reads a clock, draws a random number, or opens a file or a socket: what depends on
time, chance or the network happens in the performer (`redraft.session.perform`) and enters as
fields of records.
"""
