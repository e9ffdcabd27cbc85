"""Files that start a plan: one module per target; ``targets`` has the table of all of them."""
