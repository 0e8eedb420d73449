"""Policies in simulated worlds: the worlds, who plays in them, and the figures. What runs when is `policies.py`'s business."""
