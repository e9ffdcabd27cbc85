"""Parallel degrees, micro-batch and GPU placement for large-model training, as one constraint-optimisation problem."""

__version__ = "0.1.0"
