"""Python functions for everything that the command line does: read jobs, make plans, read plans, show plans."""
