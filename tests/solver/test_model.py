"""The CP-SAT model keeps what every engine does."""

import pytest
from conformance import EngineConformance

from pipette_opt.solver.model import CpSatModel

pytestmark = pytest.mark.search


class TestCpSatModel(EngineConformance):
    """One thread, and the whole model in each slice."""

    engine = CpSatModel
    closes = True
    large = (6, 4, 1)
    kind = "unif"
