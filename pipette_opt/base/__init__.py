"""What every room may use: array types, units, errors, atomic files, shipped files, compiled kernels, processes."""
