"""Predicted memory beside measured runs: errors, verdicts, coverage of bounds; constants of stacks."""
