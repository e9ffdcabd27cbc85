"""
Bounds from the courses of columns.

A course is the kinds of hosts that a column goes through, from its first row to its last. Where kinds are few and slow
hosts cost much, few courses keep a range of periods (:mod:`~pipette_opt.solver.courses.enumeration`), and how many
columns take each of them, and where these cross from rack to rack, is a small CP-SAT model of integers
(:mod:`~pipette_opt.solver.courses.model`). It knows each column's period and end as
:mod:`~pipette_opt.solver.racks` does, but not one column from another of its course: grids too large for that are
decided in seconds. Counts that are found become placements (:mod:`~pipette_opt.solver.courses.placements`). Where
counts tell no more, and few courses are left, a model of cells tells the order of the columns that take them
(:mod:`~pipette_opt.solver.courses.ordering`).
"""
