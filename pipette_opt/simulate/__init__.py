"""Simulator: iteration time of a schedule on the operation times of a placement."""
