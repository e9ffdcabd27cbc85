"""Table of methods: the right numbers, a dash where there is none."""

from typing import Any

from consoles import row, shown

from pipette_opt.baselines.compare import MethodRow
from pipette_opt.baselines.table import benchmark_table


def method(name: str, **figures: Any) -> MethodRow:
    """A row of a method that took 30 s; what is not given is unknown."""
    unknown = dict.fromkeys(("lower_bound_s", "gap", "iteration_time_s"))
    return MethodRow(**{"config": "tp8 pp2 dp8 mbs1", "seconds": 30.0, **unknown, **figures}, method=name)


def test_benchmark() -> None:
    """The best is 0 % from the best; 12 s is a fifth more than 10 s; nothing found is a dash; three digits."""
    rows = [
        method("pipette-opt", gap=0.01, iteration_time_s=10.0),
        method("annealing", iteration_time_s=12.0),
        method("identity order", config="none found"),
    ]
    text = shown(benchmark_table(rows))
    assert "Simulated iteration time" in text
    assert row(text, "pipette-opt")[4:] == ["10.0", "s", "+0.00", "%", "1.00", "%", "30.0", "s"]
    assert row(text, "annealing")[4:] == ["12.0", "s", "+20.0", "%", "-", "30.0", "s"]
    assert row(text, "identity order")[2:] == ["-", "-", "-", "30.0", "s"]
    shown(benchmark_table([rows[2]]))
