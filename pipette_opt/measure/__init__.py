"""
Measurements with torch: links between hosts, layers on a device, and the memory of one rank of megatron-core.

torch is imported inside functions.
"""
