"""The CP-SAT model keeps what every engine does."""

from conformance import EngineConformance

from pipette_opt.solver.model import CpSatModel


class TestCpSatModel(EngineConformance):
    """With one thread the formulations take turns."""

    engine = CpSatModel
    closes = True
    large = (6, 4, 1)
    kind = "unif"
