"""
How many columns take each course, as a CP-SAT model.

Decisions, all counts: of each course its columns; of each row the hosts of each rack and kind; of each boundary and
pair of kinds, the columns that cross it from rack to rack; the hops of each watched stage's ring. Hosts are those of
the courses, and no more than there are. At most the ceiling are: for each course and each stage that is watched, its
end with ``m - 1`` of its shortest periods, plus the slowest hop of the stage's ring; and what all columns take on
average, in place of that course. One course is the slowest column's: its period may be longer than any that is told,
since links cost at least the least of their sort.

Told by rack, each course also has its hosts of each rack in each row, and its own crossings, in no span that a period
covers more of them than its longest period has room for.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.courses.enumeration import Courses
from pipette_opt.solver.racks.flows import Kinds, add_flows
from pipette_opt.solver.racks.model import order_racks
from pipette_opt.solver.racks.rings import Counts, Ring, Term, add_ring
from pipette_opt.solver.racks.structure import Racks
from pipette_opt.solver.rows.costs import NEVER

Place = tuple[int, int, int]
"""Row, rack and course."""


@dataclass(slots=True, kw_only=True, eq=False)
class CourseModel:
    """
    The model with handles to read a solution.

    Parameters
    ----------
    columns
        Of each course.
    hosts
        Told by rack: of each row, rack and course its hosts.
    """

    model: CpModel
    columns: list[IntVar]
    hosts: dict[Place, IntVar]


def build_courses(
    candidate: CandidateData,
    racks: Racks,
    courses: Courses,
    ceiling: int,
    shortest: int,
    *,
    by_rack: bool,
    check: Callable[[], None] = lambda: None,
) -> CourseModel | None:
    """
    The model of placements that cost at most the ceiling, the slowest column's period being the shortest or longer.

    ``None`` if it is plain that there is none. The courses are for this ceiling.

    Parameters
    ----------
    check
        Called now and then; what it raises ends the building.
    """
    P, D, _ = candidate.grid
    costs, rounds = racks.costs, candidate.num_microbatches - 1
    if not courses.number:
        return None
    model = CpModel()
    columns = [model.new_int_var(0, D, "") for _ in range(courses.number)]
    is_slowest = [model.new_bool_var("") for _ in columns]
    model.add(LinearExpr.sum(columns) == D)
    model.add_bool_or(is_slowest)
    for number, slowest in zip(columns, is_slowest, strict=True):
        model.add(slowest <= number)
    counts = _add_counts(model, candidate, racks)
    built = CourseModel(model=model, columns=columns, hosts={})
    crossings = _add_own_crossings(built, candidate, racks, courses, counts) if by_rack else None
    through, across = [], []
    for row in range(P - 1):
        check()
        runs, crossed = _add_across(model, courses, columns, row, D, crossings)
        through.append(runs)
        across.append(crossed)
        inside = {pair: number - crossed[pair] for pair, number in runs.items()}
        add_flows(model, racks, D, counts[row], counts[row + 1], inside, crossed)
    periods = _add_periods(model, courses, columns, counts, through, across, D)
    late = courses.ends + rounds * np.maximum(shortest, courses.shortest)[:, None]  # as the slowest column's
    early = courses.ends + rounds * courses.shortest[:, None]
    for watched, stage in enumerate(costs.watched.tolist()):
        check()
        left = ceiling - int(costs.after[watched])
        ring = add_ring(model, racks, watched, D, counts[stage], left - int(late[:, watched].min()))
        ends = _ends(courses, watched, counts, through, across)
        model.add(ends + rounds * periods + D * ring.slowest <= D * left)
        _exclude(model, ring, columns, is_slowest, early[:, watched], late[:, watched], left, D)
    order_racks(model, racks, D, counts)
    return built


def _add_counts(model: CpModel, candidate: CandidateData, racks: Racks) -> list[Counts]:
    """Hosts of each row by rack and kind."""
    P, D, _ = candidate.grid
    everywhere = [(rack, kind) for rack, kind in np.argwhere(racks.sizes).tolist()]
    counts = [{pair: model.new_int_var(0, min(D, int(racks.sizes[pair])), "") for pair in everywhere} for _ in range(P)]
    for pair in everywhere:
        used, size = LinearExpr.sum([hosts[pair] for hosts in counts]), int(racks.sizes[pair])
        model.add(used == size if int(racks.sizes.sum()) == candidate.num_cells else used <= size)
    return counts


def _add_own_crossings(
    built: CourseModel, candidate: CandidateData, racks: Racks, courses: Courses, counts: Sequence[Counts]
) -> dict[tuple[int, int], IntVar]:
    """Hosts of each course by rack; crossings by boundary and course, where there may be any."""
    P, D, _ = candidate.grid
    model, sizes = built.model, racks.sizes.tolist()
    crossings: dict[tuple[int, int], IntVar] = {}
    may_cross = courses.has_room_to_cross()
    for course, columns in enumerate(built.columns):
        kinds = courses.kinds[course].tolist()
        for row, kind in enumerate(kinds):
            here = []
            for rack in range(racks.num_racks):
                if sizes[rack][kind]:
                    here.append(model.new_int_var(0, min(D, sizes[rack][kind]), ""))
                    built.hosts[row, rack, course] = here[-1]
            model.add(LinearExpr.sum(here) == columns)
        for row in range(P - 1):
            stays = []
            for rack in range(racks.num_racks) if courses.may_stay[course, row] else ():
                places = [(end, rack, course) for end in (row, row + 1)]
                if all(place in built.hosts for place in places):
                    stays.append(model.new_int_var(0, D, ""))
                    for place in places:
                        model.add(stays[-1] <= built.hosts[place])
            if may_cross[course, row]:
                crossings[row, course] = model.new_int_var(0, D, "")
                stays.append(crossings[row, course])
            model.add(_sum(stays) == columns)
    for row, hosts in enumerate(counts):
        for (rack, kind), number in hosts.items():
            these = np.flatnonzero(courses.kinds[:, row] == kind).tolist()
            model.add(_sum([built.hosts[row, rack, course] for course in these]) == number)
    _add_own_room(model, courses, built.columns, crossings)
    return crossings


def _add_own_room(
    model: CpModel, courses: Courses, columns: Sequence[IntVar], crossings: Mapping[tuple[int, int], IntVar]
) -> None:
    """In each span a course has no more crossings than its longest period has room for."""
    extra = courses.own_extra.tolist()
    for span, left, lacks, tells in courses.rooms():
        for course in np.flatnonzero(tells).tolist():
            used = [row for row in range(span.first, span.last) if (row, course) in crossings]
            if used:
                own = [crossings[row, course] for row in used]
                model.add(LinearExpr.sum(own) <= int(span.last - span.first - lacks[course]) * columns[course])
                taken = LinearExpr.weighted_sum(own, [extra[course][row] for row in used])
                model.add(taken <= int(left[course]) * columns[course])


def _add_across(
    model: CpModel,
    courses: Courses,
    columns: Sequence[IntVar],
    row: int,
    num_columns: int,
    crossings: Mapping[tuple[int, int], IntVar] | None,
) -> tuple[dict[Kinds, IntVar], dict[Kinds, Term]]:
    """Columns through a boundary by the kinds on both sides, and those of them that cross it from rack to rack."""
    through: dict[Kinds, IntVar] = {}
    across: dict[Kinds, Term] = {}
    number = len(courses.transfer)
    for pair in itertools.product(range(number), range(number)):
        runs = (courses.kinds[:, row] == pair[0]) & (courses.kinds[:, row + 1] == pair[1])
        these = np.flatnonzero(runs).tolist()
        through[pair] = _named(model, [columns[one] for one in these], num_columns)
        if crossings is not None:
            across[pair] = _sum([crossings[row, one] for one in these if (row, one) in crossings])
            continue
        must = [columns[one] for one in these if not courses.may_stay[one, row]]
        may = [columns[one] for one in these if courses.may_cross[one, row]]
        across[pair] = crossed = model.new_int_var(0, num_columns, "")
        model.add(crossed >= _sum(must))
        model.add(crossed <= _sum(may))
    return through, across


def _add_periods(
    model: CpModel,
    courses: Courses,
    columns: Sequence[IntVar],
    counts: Sequence[Counts],
    through: Sequence[Mapping[Kinds, IntVar]],
    across: Sequence[Mapping[Kinds, Term]],
    num_columns: int,
) -> IntVar:
    """An integer that is at most the sum of the columns' periods."""
    total = model.new_int_var(0, num_columns * int(courses.longest.max()), "")
    model.add(LinearExpr.weighted_sum(columns, courses.shortest.tolist()) <= total)
    most = len(counts) * num_columns * int(courses.longest.max())
    work = [
        _named(model, [int(courses.work[row, kind]) * one for (_, kind), one in hosts.items()], most)
        for row, hosts in enumerate(counts)
    ]
    sent = [
        _named(
            model,
            [int(courses.transfer[pair]) * one for pair, one in runs.items() if courses.transfer[pair] < NEVER]
            + [int(courses.extra[pair]) * one for pair, one in crossed.items()],
            most,
        )
        for runs, crossed in zip(through, across, strict=True)
    ]
    for span in courses.spans:
        top, bottom = span.rows
        taken = span.times * LinearExpr.sum(work[top : bottom + 1]) + _sum(sent[span.first : span.last])
        model.add(taken <= span.periods * total)
    return total


def _ends(
    courses: Courses,
    watched: int,
    counts: Sequence[Counts],
    through: Sequence[Mapping[Kinds, IntVar]],
    across: Sequence[Mapping[Kinds, Term]],
) -> LinearExpr:
    """What all columns together take to the end of a watched stage, without their periods."""
    node, arc, extra = courses.ends_node[watched], courses.ends_arc[watched], courses.ends_extra[watched]
    terms: list[Term] = []
    for row, hosts in enumerate(counts):
        terms += [int(node[row, kind]) * one for (_, kind), one in hosts.items()]
    for row, runs in enumerate(through):
        terms += [int(arc[row][pair]) * one for pair, one in runs.items() if arc[row][pair] < NEVER]
        terms += [int(extra[row][pair]) * one for pair, one in across[row].items()]
    return LinearExpr.sum(terms)


def _exclude(
    model: CpModel,
    ring: Ring,
    columns: Sequence[IntVar],
    is_slowest: Sequence[IntVar],
    early: IntArray,
    late: IntArray,
    left: int,
    num_columns: int,
) -> None:
    """
    Courses that end too late for a hop are not taken if the ring has one as slow.

    Parameters
    ----------
    early, late
        Ends of each course, and of the slowest column if it takes it.
    left
        Of the ceiling for end and hop.
    """
    for hop, reached in ring.reached.items():
        too_late = [columns[one] for one in np.flatnonzero(early + hop > left).tolist()]
        too_slow = [is_slowest[one] for one in np.flatnonzero(late + hop > left).tolist()]
        if reached is None and too_late + too_slow:
            model.add(LinearExpr.sum(too_late + too_slow) == 0)
        if reached is None:
            continue
        if too_late:
            model.add(LinearExpr.sum(too_late) <= num_columns * (1 - reached))
        if too_slow:
            model.add(LinearExpr.sum(too_slow) == 0).only_enforce_if(reached)


def _sum(terms: Sequence[Term]) -> LinearExpr | int:
    return LinearExpr.sum(list(terms)) if terms else 0


def _named(model: CpModel, terms: Sequence[Term], most: int) -> IntVar:
    total = model.new_int_var(0, most, "")
    model.add(total == _sum(terms))
    return total
