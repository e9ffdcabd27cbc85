"""Column types keep what every engine does, and raise the bound of a tree by themselves."""

from collections.abc import Iterator

from conformance import EngineConformance, given, known_of
from rack_cases import in_racks

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.problem.data import ProblemData
from pipette_opt.solver.column_types.engine import ColumnTypes


class TestColumnTypes(EngineConformance):
    """On racks without noise, which tell enough of six hosts."""

    engine = ColumnTypes
    large = (12, 8, 1)

    def problems(self) -> Iterator[ProblemData]:
        """Both send modes, with and without a slow host and a spare one."""
        for slow, spare in ((1, 0), (2, 1)):
            for shape in ((2, 2), (3, 2), (2, 3)):
                yield in_racks("async", shape, slow, spare if shape == (2, 2) else 0)
                yield in_racks("blocking", shape, slow, 0)

    def test_it_raises_the_bound(self) -> None:
        """Of a tree, without any other engine, a good placement being known."""
        incumbent = known_of(self.large_problem())
        found = anneal(incumbent.data, AnnealingParams(time_limit_s=None, max_moves=500_000)).solution
        assert found is not None
        incumbent.offer(found)
        engine = self.made(incumbent)
        assert engine.suits(0)
        assert any(engine.run(0, given(20.0)) for _ in range(4))
        assert 0 in incumbent.searched
