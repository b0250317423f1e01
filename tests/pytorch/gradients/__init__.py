"""Scenarios of what gradients are scaled by: a loss scale, and clipping."""
