"""Tools of every package: array types, units, errors, atomic files, shipped files, compiled kernels, processes."""
