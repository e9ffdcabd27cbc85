"""Fits of a stack's constants to measured runs, predictions of these runs, and errors."""
