"""Risks of running out of memory that people accept."""

USUAL_RISK = 0.1
"""
Accepted risk unless a user says another; up to it a job "fits".

Chosen on public runs (``benchmarks/results/memory-odds.md``): the largest risk at which at most 3 % of the jobs that
ran out of memory pass; it refuses less than 20 % of those that ran.
"""

SMALLEST_RISK = 1e-4
"""Minimum of the accepted risk; the tails of the error distribution are unknown below it."""

IGNORED_RISK = 1.0
"""Accepted risk at which memory does not count."""
