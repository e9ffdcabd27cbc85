"""Measurements with torch, imported inside functions: links, layers, and the memory of a rank of megatron-core."""
