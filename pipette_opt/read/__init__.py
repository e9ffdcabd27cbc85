"""Readers of users' files: clusters, links, models, launch scripts, runs, and shipped examples."""
