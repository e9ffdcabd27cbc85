"""Simulated annealing of placements, on the integer placement problem. Import from the modules; they load numba."""
