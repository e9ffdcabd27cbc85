"""
Bounds by searching a grid.

The end of the latest column is split into intervals (:mod:`~pipette_opt.solver.tree_search.search`). What one of them
leaves of the grid is known before anything is tried (:mod:`~pipette_opt.solver.tree_search.limits`); then a depth-first
search puts hosts in cells (:mod:`~pipette_opt.solver.tree_search.kernel`), and each takes hosts out of other cells
(:mod:`~pipette_opt.solver.tree_search.filter`).
"""
