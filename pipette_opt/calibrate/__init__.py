"""Constants of a stack from measured runs: predictions of their times and memory, errors, fits."""
