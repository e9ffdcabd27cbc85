"""Kinds of layers: each is a class that says what one token needs of it."""
