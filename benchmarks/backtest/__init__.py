"""Comparison of predictions with public measured runs: readers and rules of single sources, fits, pages."""
