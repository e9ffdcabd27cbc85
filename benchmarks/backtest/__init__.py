"""Predictions beside public measured runs: readers and rules of single sources, fits, pages."""
