"""Result of a trial, read from the logs of its run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import read_output
from pipette_opt.base.units import GIB, short_seconds
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.megatron_logs import WARM_UP, Reports, read_as_log, reports_of

SAME = 1.05
"""Largest ratio of two times of one run in several logs. Chosen."""

STOPPED = "the search was interrupted while it read the logs"
"""Problem of logs that were not all read."""

UNSET = {"None": "1", "": "1"}
"""Printed values of arguments that are not set, as the size that they stand for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResult:
    """
    Result of a run.

    Parameters
    ----------
    time_s
        Median time of the iterations after warm-up; ``None`` if the run ran out of memory.
    peak_bytes
        Largest memory that a rank reported; ``None`` without a report.
    num_reports
        Number of reported iterations, warm-up included.
    ran_out
        Whether the log has an out-of-memory error.
    note
        Sentence on what the logs leave open; empty without.
    """

    time_s: float | None = None
    peak_bytes: float | None = None
    num_reports: int = 0
    ran_out: bool = False
    note: str = ""

    def words(self) -> str:
        """Return the result in words, such as ``4.20 s``."""
        return "out of memory" if self.time_s is None else short_seconds(self.time_s)

    def is_unlike(self, other: "LogResult") -> bool:
        """Return whether the times of two results differ by more than a run's noise, or only one ran out of memory."""
        if self.time_s is None or other.time_s is None:
            return self.time_s is not other.time_s
        return max(self.time_s, other.time_s) > SAME * min(self.time_s, other.time_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResult:
    """
    Logs without a result, and the reason.

    Parameters
    ----------
    is_wrong
        Whether the logs show that another layout ran, so that a result cannot come any more.
    """

    problem: str
    is_wrong: bool = False


class _ReadLog(NamedTuple):
    """
    Log that was read.

    Parameters
    ----------
    is_checked
        Whether it prints arguments of the layout, all with the expected values.
    """

    name: str
    result: LogResult | NoResult
    is_checked: bool = False


def read_result(
    files: Iterable[Path],
    expected: Mapping[str, str],
    warm_up: int = WARM_UP,
    is_stopped: Callable[[], bool] = lambda: False,
) -> LogResult | NoResult:
    """
    Return the result in the logs of a run, or the reason why there is none.

    Parameters
    ----------
    files
        Log files; the latest that has a result counts, so that output of the launcher may be among them. Ranks may
        have logs of their own, of which one has the arguments and another the iterations.
    expected
        Megatron's arguments of the exported layout, by name, see :func:`expected_arguments`.
    warm_up
        Number of first reported iterations that do not count.
    is_stopped
        Function that returns whether the search was interrupted; no further log is then read.
    """
    present = sorted((file for file in files if file.is_file()), key=lambda file: (file.stat().st_mtime, file.name))
    logs = []
    for file in present:
        if is_stopped():
            return NoResult(problem=STOPPED)
        logs.append(_read(file, expected, warm_up))
    if not logs:
        return NoResult(problem="there is no log")
    is_checked = any(log.is_checked for log in logs)
    wrong = [log for log in logs if isinstance(log.result, NoResult) and log.result.is_wrong]
    results = {log.name: log.result for log in logs if isinstance(log.result, LogResult)}
    last = ([log for log in logs if log in wrong or log.name in results] or logs)[-1]
    if wrong and not is_checked:  # nothing says that the result is of the layout, but another log that it is not
        last = wrong[-1]
    if isinstance(last.result, NoResult):
        return last.result
    notes = [_other_results(last.name, results)]
    if not is_checked:
        notes.append(f"layout not checked, as {last.name} prints no arguments of Megatron-LM")
    return replace(last.result, note="; ".join(filter(None, notes)))


def _other_results(last: str, results: Mapping[str, LogResult]) -> str:
    """Return a sentence on logs whose result is unlike that of the last; empty without such logs."""
    unlike = [f"{name} says {result.words()}" for name, result in results.items() if result.is_unlike(results[last])]
    return f"{last} counts, as the latest; {', '.join(unlike)}" if unlike else ""


def expected_arguments(config: ParallelConfig, global_batch_size: int, seq_length: int) -> dict[str, str]:
    """Return the arguments that Megatron-LM prints for a configuration, by name."""
    block = config.recompute_granularity == "full" and config.recompute_method == "block"
    return {
        "world_size": str(config.world_size),
        "tensor_model_parallel_size": str(config.tensor_model_parallel_size),
        "pipeline_model_parallel_size": str(config.pipeline_model_parallel_size),
        "context_parallel_size": str(config.context_parallel_size),
        "expert_model_parallel_size": str(config.expert_model_parallel_size),
        "data_parallel_size": str(config.data_parallel_size),
        "virtual_pipeline_model_parallel_size": str(config.num_chunks) if config.num_chunks > 1 else "None",
        "micro_batch_size": str(config.micro_batch_size),
        "global_batch_size": str(global_batch_size),
        "seq_length": str(seq_length),
        "sequence_parallel": str(config.sequence_parallel),
        **({} if config.sharding_stage > 1 else {"use_distributed_optimizer": str(config.use_distributed_optimizer)}),
        "recompute_granularity": str(config.recompute_granularity),
        **({"recompute_num_layers": str(config.recompute_num_layers)} if block else {}),
    }


def _read(file: Path, expected: Mapping[str, str], warm_up: int) -> _ReadLog:
    try:
        reports = reports_of(read_as_log(read_output(file), file.name), warm_up)
    except (OSError, InputError) as error:
        return _ReadLog(file.name, NoResult(problem=f"{file.name} cannot be read: {getattr(error, 'problem', error)}"))
    printed = {name: value for name, value in expected.items() if name in reports.arguments}
    differing = [
        f"{name} {reports.arguments[name]} instead of {value}"
        for name, value in printed.items()
        if _differ(reports.arguments[name], value)
    ]
    if differing:
        problem = f"{file.name} is of another layout: {', '.join(differing)}"
        return _ReadLog(file.name, NoResult(problem=problem, is_wrong=True))
    sizes = [int(expected[name]) for name in ("global_batch_size", "seq_length", "world_size")]
    return _ReadLog(file.name, _result(file.name, reports.with_others(*sizes)), is_checked=bool(printed))


def _result(name: str, reports: Reports) -> LogResult | NoResult:
    peak_bytes = max(reports.memory_gib, default=0.0) * GIB or None
    if reports.oom:
        return LogResult(num_reports=len(reports.times), ran_out=True)
    if not reports.steady_s:
        reached = "reports only its first iteration" if reports.times else "reports no iteration"
        return NoResult(problem=f"{name} {reached}")
    return LogResult(time_s=median(reports.steady_s), peak_bytes=peak_bytes, num_reports=len(reports.times))


def _differ(printed: str, value: str) -> bool:
    """Return whether a printed and an expected value differ; a size that is not set is 1."""
    return UNSET.get(printed, printed) != UNSET.get(value, value)
