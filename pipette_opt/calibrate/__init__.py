"""Fit of a stack's constants to measured runs, predictions of measured runs, and their errors."""
