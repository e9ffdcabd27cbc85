"""
The joint CP-SAT model: choose one candidate, place its grid on the hosts, prove how good that is.

Import :func:`pipette_opt.solver.solve.solve` and :class:`pipette_opt.solver.params.SolverParams` from their modules;
``solve`` loads OR-tools.

Exact: the objective is :func:`pipette_opt.problem.objective_ticks`, tick for tick: the closed form of 1F1B, or the
longest of some paths through a schedule, interleaved or not. Decisions: the candidate, and a host for each cell of its
grid. Constraints: :data:`pipette_opt.solver.constraints.CONSTRAINTS`, each with its rule. Relaxed: only the bounds that
prune candidates before they are modelled (:mod:`pipette_opt.solver.bounds`).

How paths are modelled: one linear constraint for each path and column, ``objective >= work + sum of transfers +
reduction of the stage where it ends``, in which the transfer from each stage to the next (with interleaving also from
the last to the first) and back is a variable, bounded from below by the link of the hosts chosen. In the formulation
``by_pair`` a variable for each pair of hosts that send to each other, with one sender and one receiver for each host (a
circuit, if there is one column), bounds the sum of all transfers. Which paths there are is not the solver's concern:
:mod:`pipette_opt.certify` adds those on which the judge's time depends.
"""
