"""Words that several benchmarks share on their command lines."""

INSTANCES = "The instances"
"""Heading of the options that say on which instances a benchmark runs."""

OF_SOLVE = ("num_gpus", "gpu_price", "launcher", "p2p", "allreduce", "micro_batches")
"""Options of a job that change nothing where layers are priced on like hosts."""
