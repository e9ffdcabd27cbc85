"""Solver and annealing together: placements are looked for while bounds are proven. Import from the modules."""
