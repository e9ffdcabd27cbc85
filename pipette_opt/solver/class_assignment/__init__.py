"""
Hosts merged into classes, and classes split where it matters, until a bound says what it should.

A placement of classes costs at least what the least of their links do, so the placement model with classes for hosts,
each in as many cells as it has members, is a relaxation that keeps everything else: rows, columns, the order of the
rings, sums along paths. With a few classes it is solved soon. What it finds below the ceiling tells which links would
have to be better than most of their classes' are; there the classes are split, and so on.
"""
