"""Simulated annealing of placements, on the solver's problem. Import from the modules; it loads numba."""
