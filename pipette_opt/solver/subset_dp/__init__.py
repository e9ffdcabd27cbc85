"""
Bounds by searching a single column out of a few hosts.

The objective of a chain is a maximum of linear rows (:mod:`~pipette_opt.solver.subset_dp.rows`). Dynamic programming
over sets of hosts finds the best chain through each link for each row (:mod:`~pipette_opt.solver.subset_dp.kernel`);
links that are too long fall away, and a position is split where that is not enough
(:mod:`~pipette_opt.solver.subset_dp.search`).
"""
