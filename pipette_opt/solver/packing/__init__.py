"""
Packing of documents into bins, so that a training step takes the least work; with a lower bound.

A *bin* is a packed sequence: a micro-batch of a replica. A *lane* is the bins that a replica runs between two waits:
its micro-batches of a step, or a single bin if replicas wait at each micro-batch. A *wave* is a lane of each replica;
it takes as long as its slowest lane. Lanes sorted by their time, the longest first, are cut into waves: for given
lanes no other cut has a smaller sum.

``search`` improves a packing by moves and swaps. ``bounds`` are sums and sorted lists. ``relaxation`` is a CP-SAT model
that places long documents and treats short ones as a fluid: it gives a bound and a packing to start from. ``exact`` is
the CP-SAT model of small packings.
"""
