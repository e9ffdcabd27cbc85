"""Rules and searches of others, on the solver's problem."""
