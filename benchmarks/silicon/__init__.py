"""Comparison of kernel, collective and job predictions with public measurements."""
