"""Finished plans: contents, links used, moves between two plans, notes; import from the modules."""
