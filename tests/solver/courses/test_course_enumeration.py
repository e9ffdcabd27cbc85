"""Courses of columns against all sequences of kinds, one by one."""

import itertools
import threading

import numpy as np
import pytest
from instances import Variant, random_problem

from pipette_opt.base.types import P2PMode
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData
from pipette_opt.problem.objective import largest_ticks
from pipette_opt.solver.courses.enumeration import Courses, Span, find_courses, spans_of
from pipette_opt.solver.courses.model import build_courses
from pipette_opt.solver.racks.search import has_racks
from pipette_opt.solver.racks.structure import Racks, find_racks
from pipette_opt.solver.stoppable import OutOfTimeError, TimeSlice


def least_period(racks: Racks, p2p: P2PMode, kinds: tuple[int, ...], crossed: tuple[bool, ...] | None) -> int:
    """Period of a column, from its definition; of each boundary the cheaper link if none are told."""
    link, work = racks.of_links(racks.costs.period_arc[0]), racks.of_hosts(racks.costs.period_node)
    own = [int(work[row, kind]) for row, kind in enumerate(kinds)]
    sent = []
    for row, pair in enumerate(itertools.pairwise(kinds)):
        inside, across = link[pair].tolist()
        sent.append(min(inside, across) if crossed is None else max(inside, across) if crossed[row] else inside)
    if p2p == "blocking":
        both = zip(own, [0, *sent], [*sent, 0], strict=True)
        return max(-(-(2 * work + before + after) // 2) for work, before, after in both)
    rows = range(len(own))
    return max(
        -(-(sum(own[first : last + 1]) + sum(sent[first:last])) // (last + 1 - first))
        for first in rows
        for last in rows[first:]
    )


def ends(racks: Racks, kinds: tuple[int, ...]) -> list[int]:
    """Least ends of the watched stages, without periods."""
    found = []
    for node, arc in zip(racks.costs.end_node, racks.costs.end_arc, strict=True):
        hosts = sum(int(racks.of_hosts(node)[row, kind]) for row, kind in enumerate(kinds))
        found.append(
            hosts + sum(int(racks.of_links(arc[row])[pair].min()) for row, pair in enumerate(itertools.pairwise(kinds)))
        )
    return found


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_courses_are_those_that_keep_period_and_ceiling(p2p: P2PMode) -> None:
    """
    Every sequence of kinds is one or breaks something; period, end and longest period are by definition.

    Those that keep everything are left out only if no other one leaves hosts of all kinds for it.
    """
    rng = np.random.default_rng(5)
    compared = left_out = unaffordable = 0
    for number in range(120):
        variant = Variant(p2p=p2p, missing_share=0.2 * (number % 2), num_kinds=2, num_capacities=2, levels=2)
        data = random_problem(rng, [((2, 3, 4)[number % 3], 2, 1)], 8, variant, max_block=1)
        candidate = data.candidates[0]
        racks = find_racks(data, candidate, np.inf) if has_racks(candidate) else None
        if racks is None:
            continue
        ceiling = int(rng.uniform(0.2, 1.0) * largest_ticks(candidate))
        longest = int(rng.uniform(0.1, 1.0) * ceiling / (candidate.num_microbatches - 1))
        courses = find_courses(candidate, p2p, racks, ceiling, longest, 10_000)
        assert courses is not None
        found = {tuple(kinds): one for one, kinds in enumerate(courses.kinds.tolist())}
        assert len(found) == courses.number
        kept = {}
        for kinds in itertools.product(range(racks.num_kinds), repeat=candidate.grid[0]):
            allowed = _longest(candidate, racks, kinds, ceiling, longest)
            period = least_period(racks, p2p, kinds, None)
            if allowed is not None and period <= allowed:
                kept[kinds] = (period, allowed)
            else:
                left_out += 1
        assert found.keys() <= kept.keys()
        for kinds, (period, allowed) in kept.items():
            if kinds not in found:
                assert not any(_affordable(racks, kinds, other) for other in kept)
                unaffordable += 1
                continue
            one = found[kinds]
            assert (courses.shortest[one], courses.longest[one]) == (period, allowed)
            assert courses.ends[one].tolist() == ends(racks, kinds)
            compared += 1
    assert compared > 100
    assert left_out > 100
    assert unaffordable > 10


def _affordable(racks: Racks, *columns: tuple[int, ...]) -> bool:
    """Whether there are hosts of all kinds for these columns."""
    used = np.bincount(np.concatenate(columns), minlength=racks.num_kinds)
    return bool((used <= racks.sizes.sum(axis=0)).all())


def _longest(candidate: CandidateData, racks: Racks, kinds: tuple[int, ...], ceiling: int, longest: int) -> int | None:
    """The longest period; ``None`` if there is no link or no room."""
    link, costs = racks.of_links(racks.costs.period_arc[0]), racks.costs
    room = [bool(costs.room[row, racks.kind == kind].any()) for row, kind in enumerate(kinds)]
    if not all(room) or any(link[pair].min() >= UNUSABLE_TICKS for pair in itertools.pairwise(kinds)):
        return None
    own = [racks.kind == kinds[row] for row in costs.watched.tolist()]  # a host has a hop to it and one from it
    hops = [min(hop[here].min(), hop[:, here].min()) for hop, here in zip(costs.hop, own, strict=True)]
    spent = [int(hop + after) for hop, after in zip(hops, costs.after, strict=True)]
    rounds = candidate.num_microbatches - 1
    left = [(ceiling - one - end) // rounds for one, end in zip(spent, ends(racks, kinds), strict=True)]
    return min(longest, *left)


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_no_column_crosses_more_than_there_is_room_for(p2p: P2PMode) -> None:
    """Every choice of boundaries that are crossed, of every course: those within the period keep all rooms."""
    rng = np.random.default_rng(6)
    kept = broken = 0
    for _ in range(120):
        data = random_problem(rng, [(4, 2, 1)], 8, Variant(p2p=p2p, directed=False, levels=3), max_block=1)
        candidate = data.candidates[0]
        racks = find_racks(data, candidate, np.inf) if has_racks(candidate) else None
        if racks is None:
            continue
        ceiling = largest_ticks(candidate)
        shortest = int(racks.costs.window.min())
        courses = find_courses(candidate, p2p, racks, ceiling, int(shortest * rng.uniform(1.0, 1.5)), 10_000)
        assert courses is not None
        fits, rooms = courses.has_room_to_cross(), list(courses.rooms())
        for one, kinds in enumerate(courses.kinds.tolist()):
            for crossed in itertools.product((False, True), repeat=3):
                period = least_period(racks, p2p, tuple(kinds), crossed)
                if any(crossing and not may for crossing, may in zip(crossed, courses.may_cross[one], strict=True)):
                    continue
                if any(not (crossing or may) for crossing, may in zip(crossed, courses.may_stay[one], strict=True)):
                    continue
                if period <= courses.longest[one]:
                    kept += 1
                    assert all(may or not crossing for crossing, may in zip(crossed, fits[one], strict=True))
                    for span, _, lacks, _ in rooms:
                        boundaries = crossed[span.first : span.last]
                        assert sum(boundaries) + lacks[one] <= len(boundaries)
                else:
                    broken += any(
                        sum(crossed[room.span.first : room.span.last]) + room.lacks[one]
                        > room.span.last - room.span.first
                        for room in rooms
                    )
    assert kept > 50
    assert broken > 10


def test_spans() -> None:
    """By hand: three rows."""
    assert spans_of(3, "blocking") == (Span((0, 0), 0, 1, 2), Span((1, 1), 0, 2, 2), Span((2, 2), 1, 2, 2))
    assert [span.times for span in spans_of(3, "blocking")] == [2, 2, 2]
    assert [(span.rows, span.first, span.last, span.periods) for span in spans_of(3, "async")] == [
        ((0, 0), 0, 0, 1),
        ((0, 1), 0, 1, 2),
        ((0, 2), 0, 2, 3),
        ((1, 1), 1, 1, 1),
        ((1, 2), 1, 2, 2),
        ((2, 2), 2, 2, 1),
    ]
    assert {span.times for span in spans_of(3, "async")} == {1}


def test_too_many_courses() -> None:
    """``None``, not some of them."""
    data = random_problem(np.random.default_rng(1), [(4, 2, 1)], 8, Variant(p2p="async", num_kinds=2), max_block=1)
    candidate = data.candidates[0]
    racks = find_racks(data, candidate, np.inf)
    assert racks is not None
    all_ = find_courses(candidate, "async", racks, largest_ticks(candidate), largest_ticks(candidate), 10_000)
    assert isinstance(all_, Courses)
    assert all_.number > 1
    none = find_courses(candidate, "async", racks, largest_ticks(candidate), largest_ticks(candidate), all_.number - 1)
    assert none is None


def test_both_the_search_and_the_model_end_when_told() -> None:
    """Many courses of many rows take longer than there is time."""
    data = random_problem(np.random.default_rng(1), [(4, 2, 1)], 8, Variant(p2p="async", num_kinds=2), max_block=1)
    candidate = data.candidates[0]
    racks = find_racks(data, candidate, np.inf)
    assert racks is not None
    largest = largest_ticks(candidate)
    courses = find_courses(candidate, "async", racks, largest, largest, 10_000)
    assert isinstance(courses, Courses)
    over = TimeSlice(ends=0.0, stop=threading.Event())
    with pytest.raises(OutOfTimeError):
        find_courses(candidate, "async", racks, largest, largest, 10_000, over.check)
    for by_rack in (False, True):
        with pytest.raises(OutOfTimeError):
            build_courses(candidate, racks, courses, largest, 0, by_rack=by_rack, check=over.check)
