"""Named placement instances, and the solver beside the baselines on them. Import from the modules."""
