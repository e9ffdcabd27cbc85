"""What a finished plan looks like: the plan file, and tables for people."""
