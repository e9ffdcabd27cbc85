"""Readers of users' files: clusters, links, models, launch scripts, runs; also of the shipped examples."""
