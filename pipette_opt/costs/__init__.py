"""Costs of single operations (compute, messages, collectives), and the times of a placed configuration."""
