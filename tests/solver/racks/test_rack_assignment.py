"""Rack assignment, column types and column order keep what every engine does, and tell in turn."""

from collections.abc import Iterator

import numpy as np
import pytest
from conformance import EngineConformance, given, known_of
from rack_cases import in_racks

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.problem.data import ProblemData
from pipette_opt.solver.courses.ordering import OrderRefuter
from pipette_opt.solver.portfolio import Portfolio
from pipette_opt.solver.racks.engine import ColumnOrder, ColumnTypes, RackAssignment, RackEngine
from pipette_opt.solver.racks.refuting import CellRefuter


class RackConformance(EngineConformance):
    """On racks without noise, which tell enough of six hosts."""

    def problems(self) -> Iterator[ProblemData]:
        """Both send modes, with and without a slow host and a spare one."""
        for slow, spare in ((1, 0), (2, 1)):
            for shape in ((2, 2), (3, 2), (2, 3)):
                yield in_racks("async", shape, slow, spare if shape == (2, 2) else 0)
                yield in_racks("blocking", shape, slow, 0)


class TestRackAssignment(RackConformance):
    """The rack and the kind of each cell."""

    engine = RackAssignment


class TestColumnTypes(RackConformance):
    """Columns by the kinds of hosts that they run through."""

    engine = ColumnTypes
    large = (12, 8, 1)


class TestColumnOrder(RackConformance):
    """Columns of few types, in order."""

    engine = ColumnOrder


@pytest.mark.parametrize(("engine", "shape"), [(RackAssignment, (8, 6, 1)), (ColumnTypes, (12, 8, 1))])
def test_it_raises_the_bound(engine: type[RackEngine], shape: tuple[int, int, int]) -> None:
    """Of a tree, without any other engine, a good placement being known."""
    case = EngineConformance()
    case.engine, case.large = engine, shape
    incumbent = known_of(case.large_problem())
    found = anneal(incumbent.data, AnnealingParams(time_limit_s=None, max_moves=500_000)).solution
    assert found is not None
    incumbent.offer(found)
    made = case.made(incumbent)
    assert made.suits(0)
    assert any(made.run(0, given(20.0)) for _ in range(4))
    assert 0 in incumbent.searched


def test_the_order_of_columns_is_told_where_counts_end() -> None:
    """Racks without noise, on few cells: counts soon have a pattern that no order of the columns keeps."""
    incumbent = known_of(in_racks("async", (4, 5), 4, 0, 3))
    incumbent.offer_hosts(0, np.arange(20))
    counts, ordered = (kind(incumbent, incumbent.offer_hosts) for kind in (RackAssignment, ColumnOrder))
    bounds = []
    for engine in (counts, ordered):
        assert engine.suits(0)
        engine.run(0, given(60.0))
        bounds.append(int(incumbent.bounds[0]))
    first, second = counts.begun[0], ordered.begun[0]
    assert first is not None
    assert second is not None
    assert isinstance(first.refutes, CellRefuter)
    assert isinstance(second.refutes, OrderRefuter)
    assert second.bound > first.possible > first.bound
    assert bounds[1] >= second.bound
    assert Portfolio(incumbent, incumbent.offer_hosts).engines.keys() >= {"column-order"}
