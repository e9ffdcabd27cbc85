"""Class assignment keeps what every engine does, and finds and proves by itself."""

import numpy as np
import pytest
from conformance import EngineConformance, given, known_of
from instances import one_candidate_cluster

from pipette_opt.solver.class_assignment.engine import ClassAssignment

pytestmark = pytest.mark.search


class TestClassAssignment(EngineConformance):
    """With all classes split it is exact."""

    engine = ClassAssignment
    closes = True


def test_it_finds_and_proves() -> None:
    """Ten hosts in racks: in a few slices, without any other engine, something is found and the bound rises."""
    incumbent = known_of(one_candidate_cluster(np.random.default_rng(4), "tree", (5, 2, 1)))
    engine = ClassAssignment(incumbent)
    before = int(incumbent.bounds[0])
    for _ in range(4):
        if engine.suits(0):
            engine.run(0, given(2.0))
    assert incumbent.best is not None
    assert before < incumbent.lower <= incumbent.best.objective_ticks
    assert 0 in incumbent.searched


def test_hosts_without_structure_have_no_classes() -> None:
    """It leaves them to others."""
    incumbent = known_of(one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1)))
    assert not ClassAssignment(incumbent).suits(0)
