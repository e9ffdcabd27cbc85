"""
One candidate and hosts for it, chosen together: the problem, exactly stated, and how it is solved.

Import :func:`pipette_opt.solver.solve.solve` and :class:`pipette_opt.solver.params.SolverParams` from their modules;
``solve`` loads OR-tools.

**Before it**, one CP-SAT model over all families of configurations (:mod:`~pipette_opt.solver.layer_model`, driven by
:mod:`~pipette_opt.solver.joint`) chooses degrees, the layers of every stage, how many of them are recomputed and the
kind of GPU of every row, with memory as a hard constraint. The splits of the layers that it hands on are candidates
like others; of all further ones it is the proof. What follows places candidates on hosts.

**Given** (:class:`~pipette_opt.problem.data.ProblemData`, integers only): candidates, each one configuration with one
packing of the hosts and its grid of ``P`` pipeline rows, ``D`` data columns and ``K`` parts of a slot; what work,
transfers, reductions and rings inside slots take on each kind of host and over each directed pair of hosts; how much
memory each row needs and each host has.

**Decided**: one candidate, and a host for each cell of its grid.

**Minimised**: :func:`~pipette_opt.problem.objective.objective_ticks`, tick for tick. For a closed form (1F1B) the
largest over stages ``s`` and columns of

    ``round_trip + (m - 1) * period - before(s) + ring(s) [+ embedding, first and last stage] + optimizer``

where ``period`` is the largest of a column's ``work + both waits`` (blocking sends) or of the means, rounded up, over
its intervals of stages (asynchronous); ``before(s)`` is what the stages before ``s`` still have to do when ``s`` is
finished; ``ring(s)`` is the slowest hop of the stage's ring or what it takes inside hosts. The period and the rings
are bottlenecks, over links; round trip and ``before`` are sums along one column. For other schedules the longest of
given paths takes the place of the first three terms.

**Subject to** (:data:`~pipette_opt.solver.constraints.CONSTRAINTS`, each with its rule): one candidate; one host for
each cell; no host in two cells (hosts may be left over: N of M); the host's memory is enough for its row's stages;
every transfer, ring hop and hop inside a slot has a link that the candidate may use, in both directions if so used. The
order of the columns is the order of every row's ring, which goes through the parts of context groups on its way. Which
stages and replicas share a host is part of the candidate, and so are a launcher's limits: packings that it cannot
express are no candidates. Equal placements are told apart by
one rule only: of the hosts of the first row, the first cell has the one listed first.

**Exact**: the CP-SAT model of these rules (:mod:`~pipette_opt.solver.variables`,
:mod:`~pipette_opt.solver.constraints`, :mod:`~pipette_opt.solver.objective`), the reference and an engine.

**Rewritten**, before all of that: each ring hop costs at least what the slowest hop of any ring through it does
(:mod:`~pipette_opt.solver.lifting`). No placement's objective changes; relaxations that look at a hop by itself, or
merge hosts, tell more.

**Relaxed**, each a lower bound in integers, without a tolerance:

- the best links and hosts for everything (:mod:`pipette_opt.problem.best_links`);
- as many different senders and receivers as there are hops, by matching (:mod:`~pipette_opt.solver.bounds`);
- class assignment (:mod:`~pipette_opt.solver.class_assignment`): the placement model with classes of near twins for
  hosts, each in as many cells as it has members. Columns and the order of the rings are kept, only which host is meant
  is not. On large grids ceilings are refuted and nothing is minimised. The best assignment tells which classes to
  split, until, on few hosts, all are single: then it is exact.

**Found**: the engines above find placements, too, but most good ones come from simulated annealing
(:mod:`pipette_opt.annealing`), which proves nothing and comes before: ``certify`` anneals and proves in rounds,
and so do comparisons with baselines (:mod:`pipette_opt.baselines.rounds`).

**The certificate** is the least bound over all candidates. A candidate whose bound reaches the incumbent is done; what
any engine proves about one counts for all others. Which engine gets which grid, when and for how long is one table,
:data:`~pipette_opt.solver.portfolio.TABLE`; what each is, :class:`~pipette_opt.solver.engine.Engine`. The log
(``INFO``) says what each engine proved and in what time.
"""
