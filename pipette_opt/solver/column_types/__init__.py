"""
Bounds from the types of columns.

A column's type, its course, is the kinds of hosts that it goes through, from its first row to its last. Where kinds are
few and slow hosts cost much, few courses keep a range of periods (:mod:`~pipette_opt.solver.column_types.enumeration`),
and how many columns take each of them, and where these cross from rack to rack, is a small CP-SAT model of integers
(:mod:`~pipette_opt.solver.column_types.model`). It knows each column's period and end, but not one column from another
of its course, nor the order of the columns in the rings: large grids are decided in seconds. Counts that are found
become placements (:mod:`~pipette_opt.solver.column_types.placements`).
"""
