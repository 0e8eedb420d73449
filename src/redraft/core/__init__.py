"""Floor 0: what a refinement is, without a world to run it in.

Nothing below this package reads a clock, draws a random number, opens a file or a socket.
Time and chance enter as fields of records.
"""
