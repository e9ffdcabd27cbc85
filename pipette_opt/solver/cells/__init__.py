"""
Bounds by searching a grid of few cells.

The end of the latest column is split into intervals (:mod:`~pipette_opt.solver.cells.search`). What one of them leaves
of the grid is known before anything is tried (:mod:`~pipette_opt.solver.cells.limits`); then a depth-first search puts
hosts in cells (:mod:`~pipette_opt.solver.cells.kernel`), and each takes hosts out of other cells
(:mod:`~pipette_opt.solver.cells.filter`).
"""
