"""
Certificate of the simulated time: a proven lower bound on the simulated time of every plan in the searched space.

The simulated time is a maximum over paths through the event graph of a schedule. Every path is linear in the times of
compute and links. So each candidate (configuration with a host tile) starts with a few paths, a relaxation, and three
steps repeat:

1. place the candidate for the longest of its paths;
2. simulate the placement;
3. add the critical paths that the simulator found, which makes the relaxation exact at this placement.

Annealing places first: it is quick and finds most of the paths that matter. Then the solver proves. When the solver's
optimum is a placement whose relaxation equals the simulated time, the gap is closed.

If collectives overlap with compute, a path also has waits for parameters, slowdown and queued reductions. All grow with
the ring time of a grid row, so they are functions of the slowest hop of its ring.

Some relaxations never become exact. If expert-parallel groups span hosts, relaxations count all-to-alls over the best
links. A branch and bound over hosts, which simulates partial placements, bounds such candidates
(:mod:`~pipette_opt.simulate.host_tree`).

Candidates that cannot beat the best plan are not placed. They are ruled out by their paths over the best links, or by
simulating with all links as fast as the fastest: no operation starts later when a time gets shorter. After the proof,
``beside`` places a few of them that may be plainer, less risky, or shown as the next best.

:func:`~pipette_opt.certify.rounds.certify` runs the steps in rounds: the joint model and bounds that add configurations
(``more_configurations``), ``opening`` (best links), ``placing`` (annealing, swaps, branch and bound) and ``proving``
(the solver). A step runs when it has work; the search ends when none has any. ``budget`` divides the time.
"""
