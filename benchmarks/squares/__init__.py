"""Layers on squares of ranks (PrimePar) beside Megatron's tensor parallelism on as many GPUs."""
