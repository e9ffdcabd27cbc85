"""
Bounds from rows and classes of hosts.

What makes a placement slow is rarely which host is in which cell, but how many hosts of which kind are in which row:
where slow hosts go, which rows a rack fills, which boundaries cross racks. So hosts that are near twins are merged
into classes (:mod:`~pipette_opt.solver.rows.classes`), a link costs the least of its two classes
(:mod:`~pipette_opt.solver.rows.costs`), and a small CP-SAT model (:mod:`~pipette_opt.solver.rows.model`) decides how
many hosts of each class each row has, how many columns go through each triple of classes in consecutive rows, and how
many ring hops each row has between each pair of classes. Columns are counted, not named, which leaves nothing of
their symmetry. Every placement is a solution of that model and costs no less than it says; so the least cost of the
model is a bound, and an infeasible model a proof.
"""
