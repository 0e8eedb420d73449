"""The commands: each module declares one command of `redraft`: its arguments, options and help (see
`redraft.cli`).
"""
