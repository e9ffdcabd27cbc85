"""Tables of candidates and of methods: the right numbers, a dash where there is none."""

from dataclasses import dataclass, replace

from consoles import row, shown
from factories import small_config

from pipette_opt.parallel import ParallelConfig
from pipette_opt.report.lists import benchmark_table, candidates_table


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A row of the candidates' table."""

    config: ParallelConfig
    fits: bool
    need_gib: float
    fastest_s: float | None


@dataclass(frozen=True, kw_only=True)
class Method:
    """A row of the benchmark's table."""

    method: str
    config: str = "tp8 pp2 dp8 mbs1"
    objective_s: float | None = None
    gap: float | None = None
    iteration_time_s: float | None = None
    seconds: float = 30.0


def test_candidates() -> None:
    """One that fits and one that does not."""
    chosen = small_config()
    rows = [
        Candidate(config=chosen, fits=True, need_gib=33.25, fastest_s=1.5),
        Candidate(config=replace(chosen, micro_batch_size=8), fits=False, need_gib=133.0, fastest_s=None),
    ]
    text = shown(candidates_table(rows))
    assert row(text, chosen.label()) == ["16", "33.2", "GiB", "yes", "1.5000", "s"]
    assert row(text, rows[1].config.label()) == ["16", "133.0", "GiB", "no", "-"]


def test_benchmark() -> None:
    """The best is 0 % from the best; 12 s is a fifth more than 10 s; nothing found is a dash."""
    rows = [
        Method(method="pipette-opt", objective_s=10.0, gap=0.01, iteration_time_s=9.5),
        Method(method="annealing", objective_s=12.0, iteration_time_s=11.0),
        Method(method="identity order", config="none found"),
    ]
    text = shown(benchmark_table(rows))
    assert row(text, "pipette-opt")[4:] == ["10.0000", "s", "+0.00%", "1.00%", "9.5000", "s", "30.0", "s"]
    assert row(text, "annealing")[6:8] == ["+20.0%", "-"]
    assert row(text, "identity order")[2:] == ["-", "-", "-", "-", "30.0", "s"]
    shown(benchmark_table([rows[2]]))
