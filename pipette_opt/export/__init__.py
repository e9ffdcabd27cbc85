"""Files that launch a plan: a module per format; ``targets`` has the table of all formats."""
