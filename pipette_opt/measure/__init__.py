"""
Measurements with torch, which is imported inside functions.

Links between hosts, layers on a device, and the memory of one rank of megatron-core.
"""
