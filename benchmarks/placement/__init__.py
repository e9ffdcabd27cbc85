"""Named clusters of the benchmarks. Import from the module."""
