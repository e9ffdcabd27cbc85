"""
The joint problem, exactly stated, and how it is solved.

Import :func:`pipette_opt.solver.solve.solve` and :class:`pipette_opt.solver.params.SolverParams` from their modules;
``solve`` loads OR-tools.

**Given** (:class:`~pipette_opt.problem.data.ProblemData`, integers only): candidates, each one configuration with one
packing of the hosts and its grid of ``P`` pipeline rows, ``D`` data columns and ``K`` tensor parts; what work,
transfers, reductions and tensor groups take on each kind of host and over each directed pair of hosts; how much memory
each row needs and each host has.

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
every transfer, ring hop and tensor hop has a link that the candidate may use, in both directions if so used. The
order of the columns is the order of every row's ring. Which stages and replicas share a host is part of the candidate,
and so are a launcher's limits: packings that it cannot express are no candidates. Equal placements are told apart by
one rule only: of the hosts of the first row, the first cell has the one listed first.

**Exact**:

- the CP-SAT model of these rules (:mod:`~pipette_opt.solver.variables`, :mod:`~pipette_opt.solver.constraints`,
  :mod:`~pipette_opt.solver.objective`) in two formulations: the reference, and the engine for small clusters, for
  tensor groups over several hosts and for paths;
- the search of a grid for closed forms with tensor groups inside hosts: the end of the latest column is split into
  intervals; within one, columns and ring hops have limits, and a depth-first search finds what keeps them or ends. On a
  few cells (:mod:`~pipette_opt.solver.cells`) what has the fewest choices left, a cell or a host, is next, and each
  host that is put somewhere takes hosts out of other cells; the ceiling is tried first, and lower ones while that takes
  long. On many (:mod:`~pipette_opt.solver.grid_search`) the rows are filled in turn, with the longest period in place
  of the end. What is found is valued by the objective again;
- the search of a chain (:mod:`~pipette_opt.solver.chains.search`) for a single column out of a few hosts, closed form
  or paths: for each sum whose maximum the objective is, dynamic programming over sets of hosts finds the best chain
  through each link; links through which even that is too long fall away, until nothing is left or a position is split.

**Rewritten**, before all of that: each ring hop costs at least what the slowest hop of any ring through it does
(:mod:`~pipette_opt.solver.lifting`). No placement's objective changes; relaxations that look at a hop by itself, or
merge hosts, tell more.

**Relaxed**, each a lower bound in integers, without a tolerance:

- the best links and hosts for everything (:mod:`pipette_opt.problem.best_links`);
- as many different senders and receivers as there are hops, by matching (:mod:`~pipette_opt.solver.bounds`);
- rows of classes (:mod:`~pipette_opt.solver.rows`): hosts that are near twins are merged, a link costs the least of its
  two classes; how many hosts of each class are in each row, how many columns run through each three of them, which hops
  each ring has. Which host is meant, and that all rows have their columns in the same order, is left out. With
  asynchronous sends the mean over every run of rows and the slow hosts a run can have count, too, and on large grids
  ranges of the slowest period are refuted one by one. An infeasible model with a ceiling proves the ceiling; the model
  has counts and no objective, so its proofs are of integers. Costs of classes that differ by little are first taken
  for the least of them, so that equal racks are seen to be equal. What counts are found is made a placement and
  annealed: on many hosts this is where good placements come from;
- racks and kinds of hosts (:mod:`~pipette_opt.solver.racks`), on grids of 41 to 80 cells: the rack and the kind of each
  cell, each column with its own period; a link costs the least of its two kinds, inside a rack or across. The order of
  rings is left out if there are more than four columns. One model without relaxation refutes a ceiling for a range of
  periods; cells that are found are placed and annealed;
- courses of columns (:mod:`~pipette_opt.solver.courses`), on larger grids: of racks and kinds as above, but columns
  through the same kinds of hosts are only counted. All sequences of kinds that a range of periods and the ceiling leave
  are listed, each with its period, its ends and the least ring hops of its hosts, and a model of integers says how many
  columns take each; first without, then with the racks that these are in. Its relaxation is what refutes; the counts
  found are placed and annealed. With blocking sends, up to
  :data:`~pipette_opt.solver.courses.refuting.MOST_CELLS` cells, racks and kinds of each cell are asked where courses
  take too long;
- courses in order (:mod:`~pipette_opt.solver.courses.ordering`), once neither of these raises the bound any more: the
  rack and the kind of each cell of columns that take few courses, with neighbours that are the same in all rings;
- patterns of classes (:mod:`~pipette_opt.solver.merged`): the joint model with classes for hosts, each in as many cells
  as it has members. Columns and the order of the rings are kept, only which host is meant is not, so this tells more
  than counts, of any candidate, but takes longer. Below the incumbent nothing is minimised where grids are large:
  ceilings are refuted. The best pattern tells which classes to split, until, on few hosts, all are single: then it is
  exact. What patterns are found are annealed, too.

**The certificate** is the least bound over all candidates. A candidate whose bound reaches the incumbent is done;
what any engine proves about one counts for all others. What is chosen by itself: bounds without a search for all;
single columns out of a few hosts are left to the search of a chain; of the others, those with more than a few cells
get rows of classes, most promising first (or racks, where these apply, if there is only one), then patterns of
classes, the search of a grid and the model in turn, with slices of time that double. Grids of up to
:data:`~pipette_opt.solver.portfolio.FEW_CELLS` cells and more than one column are searched in half of the threads and
modelled in the others, as either may end in a second where the other takes a minute. Larger ones are not left to the
model where the search applies, nor, after a first look, to the search while patterns still raise the bound; those that
go to patterns at once have many classes of hosts that are almost alike
(:func:`~pipette_opt.solver.merged.search.alike_classes`). The log (``INFO``) says what each engine proved and in what
time.
"""
