"""The baselines: annealing and rules, on the solver's problem. Import from the modules; annealing loads numba."""
