"""
The joint CP-SAT model: choose one candidate, place its grid on the hosts, prove how good that is.

Import :func:`pipette_opt.solver.solve.solve` and :class:`pipette_opt.solver.params.SolverParams` from their modules;
``solve`` loads OR-tools.

Exact: the objective is :func:`pipette_opt.problem.objective_ticks`, tick for tick. Decisions: the candidate, and a host
for each cell of its grid. Constraints: :data:`pipette_opt.solver.constraints.CONSTRAINTS`, each with its rule.
Relaxed: only the bounds that prune candidates before they are modelled (:mod:`pipette_opt.solver.bounds`).
"""
