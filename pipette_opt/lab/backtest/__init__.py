"""How good the predictions are, and how good any could be, on measured runs."""
