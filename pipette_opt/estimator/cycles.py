"""
Exact period of interleaved 1F1B: the largest cycle ratio of its event graph.

A steady-state schedule repeats after one group of ``pp`` micro-batches. An operation of the group is a node, "starts
after" is an edge with the seconds from end to end, and an edge counts how many groups it goes on. The period is the
largest ratio of seconds over groups of all cycles (Baccelli et al., Synchronization and Linearity, 1992, section 3.2).
It is found by improving a guess with the best cycle of positive reduced length, as Newton's method does, until there is
none.
"""

from typing import Any, NamedTuple

import numpy as np

from pipette_opt.costs.placed import PlacedTimes
from pipette_opt.types import FloatArray, IntArray, P2PMode


class EventGraph(NamedTuple):
    """Edges between the operations of one group, shape ``(num_edges,)`` each, and the number of nodes."""

    source: IntArray
    target: IntArray
    seconds: FloatArray
    groups: IntArray
    num_nodes: int


def exact_period_s(times: PlacedTimes, p2p: P2PMode, replica: int = 0) -> float:
    """Seconds per micro-batch in the steady state of one replica of interleaved 1F1B, exactly."""
    graph = event_graph(times, p2p, replica)
    return largest_cycle_ratio(graph) / int(times.forward_s.shape[1])


def largest_cycle_ratio(graph: EventGraph) -> float:
    """
    Largest ratio of seconds over groups of all cycles, 0 if there is none.

    Every cycle must go on by at least one group: otherwise the schedule deadlocks, and ``ValueError`` is raised.
    """
    from pipette_opt.estimator._kernel import positive_cycle

    scale = float(np.abs(graph.seconds).sum())
    ratio = -1.0
    while True:
        reduced = graph.seconds - ratio * graph.groups
        cycle = positive_cycle(graph.source, graph.target, reduced, graph.num_nodes, 1e-12 * scale)
        if not len(cycle):
            return max(ratio, 0.0)
        on = int(graph.groups[cycle].sum())
        if on < 1:
            raise ValueError("a cycle of the event graph stays in its group: the schedule deadlocks.")
        better = float(graph.seconds[cycle].sum()) / on
        if better <= ratio:
            return max(ratio, 0.0)
        ratio = better


def event_graph(times: PlacedTimes, p2p: P2PMode, replica: int = 0) -> EventGraph:
    """The steady state of interleaved 1F1B, as :mod:`pipette_opt.estimator.critical_path` walks it."""
    builder = _Builder(times, replica)
    for stage in range(builder.pp):
        for index in range(builder.size):
            builder.add_data(stage, index)
            builder.add_order(stage, index)
            if p2p == "blocking":
                builder.add_receives(stage, index)
                builder.add_sends(stage, index)
    return builder.graph()


class _Builder:
    """
    Collects edges; a node is (stage, backward, number of the forward or backward in its group).

    Numbers outside the group are in another one: an edge from number ``n`` to a node of this group goes on by
    ``-(n // size)`` groups.
    """

    def __init__(self, times: PlacedTimes, replica: int) -> None:
        self.chunks, self.pp = int(times.forward_s.shape[0]), int(times.forward_s.shape[1])
        self.size = self.chunks * self.pp
        self.work = (times.forward_s[:, :, replica], times.backward_s[:, :, replica])
        self.up, self.down = times.send_forward_s[:, replica], times.send_backward_s[:, replica]
        self.edges: list[tuple[int, int, float, int]] = []

    def warmup(self, stage: int) -> int:
        """Forwards ahead of backwards in the steady state."""
        return 2 * (self.pp - 1 - stage) + (self.chunks - 1) * self.pp

    def seconds(self, stage: int, backward: int, index: int) -> float:
        """Work of an operation."""
        chunk = index % self.size // self.pp
        return float(self.work[backward][self.chunks - 1 - chunk if backward else chunk, stage])

    def add(self, source: tuple[int, int, int], target: tuple[int, int, int], transfer: float) -> None:
        """``target``, in this group, starts ``transfer`` after the end of ``source``."""
        stage, backward, index = target
        here, its_backward, its_index = source
        self.edges.append(
            (
                (here * 2 + its_backward) * self.size + its_index % self.size,
                (stage * 2 + backward) * self.size + index,
                transfer + self.seconds(*target),
                -(its_index // self.size),
            )
        )

    def origin(self, stage: int, backward: int, index: int) -> tuple[tuple[int, int, int], float] | None:
        """Who sends what an operation needs, and the transfer; ``None`` if nothing is sent."""
        index_in_chunks = index % self.size // self.pp
        if not backward and stage > 0:
            return (stage - 1, 0, index), float(self.up[stage - 1])
        if backward and stage < self.pp - 1:
            return (stage + 1, 1, index), float(self.down[stage])
        if index_in_chunks == 0:
            return None
        if backward:
            return (0, 1, index - self.pp), float(self.down[-1])
        return (self.pp - 1, 0, index - self.pp), float(self.up[-1])

    def receiver(self, stage: int, backward: int, index: int) -> tuple[tuple[int, int, int], float] | None:
        """Who needs what an operation makes, and the transfer; ``None`` if nobody."""
        inside = self.pp - 1 > stage if not backward else stage > 0
        step = -1 if backward else 1
        other = ((stage + step) % self.pp, backward, index if inside else index + self.pp)
        found = self.origin(*other)
        return (other, found[1]) if found is not None else None

    def before(self, stage: int, backward: int, index: int, steps: int) -> tuple[int, int, int]:
        """The operation ``steps`` places before; forward ``n + w`` stands right before backward ``n``."""
        place = 2 * index + 1 if backward else 2 * (index - self.warmup(stage))
        number, kind = divmod(place - steps, 2)
        return (stage, kind, number if kind else number + self.warmup(stage))

    def add_data(self, stage: int, index: int) -> None:
        """Inputs; the first backward of a micro-batch follows its last forward, which order ensures."""
        for backward in (0, 1):
            found = self.origin(stage, backward, index)
            if found is not None:
                self.add(found[0], (stage, backward, index), found[1])

    def add_order(self, stage: int, index: int) -> None:
        """One after the other on a stage."""
        for backward in (0, 1):
            self.add(self.before(stage, backward, index, 1), (stage, backward, index), 0.0)

    def add_receives(self, stage: int, index: int) -> None:
        """A message also waits for its receive, which is posted two operations before."""
        for backward in (0, 1):
            found = self.origin(stage, backward, index)
            if found is not None:
                self.add((stage, backward, index - 1), (stage, backward, index), found[1])

    def add_sends(self, stage: int, index: int) -> None:
        """Before an operation the send of three operations before has arrived."""
        for backward in (0, 1):
            sender = self.before(stage, backward, index, 3)
            found = self.receiver(*sender)
            if found is None:
                continue
            (other, its_backward, number), transfer = found
            self.add(sender, (stage, backward, index), transfer)
            self.add((other, its_backward, number - 1), (stage, backward, index), transfer)

    def graph(self) -> EventGraph:
        """All edges."""
        table: Any = np.array(self.edges, dtype=np.float64)
        return EventGraph(
            source=table[:, 0].astype(np.int64),
            target=table[:, 1].astype(np.int64),
            seconds=table[:, 2],
            groups=table[:, 3].astype(np.int64),
            num_nodes=2 * self.pp * self.size,
        )
