"""
Tools that every package may import: array types, units, errors, atomic files, shipped files, compiled kernels,
processes.
"""
