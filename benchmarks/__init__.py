"""Programs that test and measure the package, run from a checkout: ``python -m benchmarks.NAME``."""
