"""Files that start a plan: one module per target, and the table of all of them in ``targets``."""
