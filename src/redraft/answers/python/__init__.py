"""Reads Python source without running it: its syntax tree, the names that it defines and uses, and
which of several pieces of code are the program that the tests of a task test.
"""
