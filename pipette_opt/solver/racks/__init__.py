"""
Bounds from racks and kinds of hosts.

Where hosts stand in racks and some are slower than others, what a link costs depends on the kinds of its two ends and
on whether they share a rack, and on little else. So hosts are told apart by rack and kind only
(:mod:`~pipette_opt.solver.racks.structure`), a link costs the least of its sort, and a CP-SAT model
(:mod:`~pipette_opt.solver.racks.model`) decides the rack and the kind of each cell. The least cost of the model is a
bound: every placement is a solution of it and costs no less. Few sorts of links make the model small, and ceilings are
refuted in seconds where counts of rows alone do not refute them at all.
"""
