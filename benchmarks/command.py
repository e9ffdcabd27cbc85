"""Constants that the command lines of several benchmarks share."""

INSTANCES = "The instances"
"""Heading in the help text of the options that choose a benchmark's instances."""

OF_SOLVE = ("num_gpus", "gpu_price", "launcher", "p2p", "allreduce", "micro_batches")
"""Options of a job that do not matter where layers are priced on identical hosts."""
