"""Output about plans: plan files, tables for the terminal, and HTML pages."""
