"""Policies in simulated worlds: the worlds, the players (policies), and the figures. `policies.py`
runs them.
"""
