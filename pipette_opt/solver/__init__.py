"""
Placement of one configuration on hosts: the exact statement of the problem, and how it is solved.

Import :func:`pipette_opt.solver.solve.solve` and :class:`pipette_opt.solver.params.SolverParams` from their modules;
``solve`` loads OR-tools.

**Input from the joint model.** One CP-SAT model covers all partition families (:mod:`~pipette_opt.solver.layer_model`,
driven by :mod:`~pipette_opt.solver.joint`). It chooses degrees, layers of each stage, recomputed layers and the GPU
type of each row. Memory is a hard constraint. The layer partitions that it returns become candidates; it bounds all
other partitions itself. The rest of this page is about the placement of candidates on hosts.

**Given** (:class:`~pipette_opt.problem.data.ProblemData`, integers only): candidates, and the ticks (integer time
units) of their operations. A candidate is a configuration with one host tile. Its grid has ``P`` pipeline rows, ``D``
data columns and ``K`` hosts for each slot (tensor and context ranks of one stage of one replica). The data has compute,
transfers, reductions and rings inside slots for each GPU type and each directed pair of hosts. It also has the memory
that each row needs and each host has.

**Decided**: one candidate, and a host for each cell of its grid.

**Minimised**: :func:`~pipette_opt.problem.objective.objective_ticks`, tick for tick. It is the largest over columns and
paths through the schedule of

    ``work + transfers + hops inside slots + ring(s) [+ embedding, first and last stage] + optimizer``

where ``s`` is the stage whose last backward ends the path, and ``ring(s)`` is the slowest hop of the stage's ring, or
the time of the ring inside hosts. A path counts the passes on each stage and the transfers of each link. Rings that
overlap with compute add ticks to a path by the level of their slowest hop. So rings are bottlenecks over links, and the
rest are sums along one column.

**Subject to** (:data:`~pipette_opt.solver.constraints.CONSTRAINTS`, one function for each rule):

- one candidate; one host for each cell; no host in two cells (hosts may stay unused: N of M);
- each host has the memory that the stages of its row need;
- each transfer, ring hop and hop inside a slot has a usable link, in both directions if both are used.

The order of the columns is the order of every row's ring, which passes through the parts of context groups. The
candidate fixes which stages and replicas share a host. Tilings that a launcher cannot express are no candidates. One
rule breaks the symmetry of equal placements: the first cell has the host listed first among those of the first row.

**Exact**: the CP-SAT model of these rules (:mod:`~pipette_opt.solver.model`, with its
:mod:`~pipette_opt.solver.variables`, :mod:`~pipette_opt.solver.constraints` and
:mod:`~pipette_opt.solver.objective`).

**Relaxations**, each a lower bound in integers without a tolerance:

- the best links and hosts for everything (:mod:`pipette_opt.problem.best_links`);
- distinct senders and receivers for all hops, by matching (:mod:`~pipette_opt.solver.bounds`);
- class assignment (:mod:`~pipette_opt.solver.class_assignment`): the placement model with classes of nearly identical
  hosts. A class may be in as many cells as it has members. Columns and ring order stay; only the individual host is
  undecided. On large grids, the model only refutes ceilings (objectives that a placement would have to reach). Its
  best assignment shows which classes to split. On few hosts, it splits until each class is a single host.

**Primal solutions**: the CP-SAT models find placements, but most good ones come from simulated annealing
(:mod:`pipette_opt.annealing`), which proves nothing and runs before. ``certify`` alternates annealing and proof.

**Certificate**: the least bound over all candidates. A candidate is closed when its bound reaches the incumbent. The
log (``INFO``) lists each run of a model with its time.
"""
