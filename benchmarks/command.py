"""Constant of the command lines of benchmarks."""

INSTANCES = "The instances"
"""Heading in the help text of the options that choose a benchmark's instances."""
