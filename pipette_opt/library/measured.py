"""Measured runs of the user, ``--measured``: launches with figures, logs and tables, read into anchors of the stack."""

import csv
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import combinations
from math import exp, inf, log
from pathlib import Path
from typing import Any

import numpy as np

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.files import is_file, is_folder
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import GB, GIB, counted, three_digits, whole_number
from pipette_opt.calibrate.cases import Skipped, make_case, why_untimed
from pipette_opt.calibrate.memory import memory_run, ran_out_later
from pipette_opt.calibrate.memory_calibration import moved_constants
from pipette_opt.calibrate.memory_runs import MemoryRun, predict_memory
from pipette_opt.calibrate.memory_spread import oom_probability
from pipette_opt.job.launch import as_trained, exported_placement, legal_config
from pipette_opt.job.models import check_one_model, is_same_model
from pipette_opt.job.read import Job
from pipette_opt.library.plans import job_of, on_hosts_of
from pipette_opt.memory.fewest import needing_no_more
from pipette_opt.memory.predictor import stack_predictor, stage_ranks
from pipette_opt.memory.twins import config_key
from pipette_opt.parallel import ParallelConfig, Placement, RankGrid, identity_placement
from pipette_opt.read.cluster import subset_cluster
from pipette_opt.read.exported import ARGUMENTS, exported_hashes, is_exported, launch_in
from pipette_opt.read.files import read_text
from pipette_opt.read.launch_file import is_launch
from pipette_opt.read.megatron_args import MegatronArgs, read_megatron_args
from pipette_opt.read.megatron_logs import SUFFIXES, import_runs
from pipette_opt.read.megatron_words import read_words
from pipette_opt.read.runs import MeasuredRun, read_row, read_runs
from pipette_opt.read.scripts import script_environment
from pipette_opt.read.settings_files import settings_file
from pipette_opt.report.plan_file import read_plan
from pipette_opt.simulate.least_times import peak_gpu_seconds
from pipette_opt.specs import ClusterSpec, Instance, StackSpec
from pipette_opt.specs.memory_constants import HIDDEN, MemoryConstants
from pipette_opt.specs.stack import FITS, Anchor, MeasuredMemory
from pipette_opt.tune.folder import JOB as TUNE
from pipette_opt.tune.folder import PLAN, RECORD, OwnRun, TuneFolder
from pipette_opt.tune.logs import LogResult, NoResult, expected_arguments, read_result
from pipette_opt.worlds.factor import SAME, anchored_stack, job_factor, job_means, moved, unmoved
from pipette_opt.worlds.reference import reference_terms
from pipette_opt.worlds.terms import described_plan

logger = logging.getLogger(__name__)

OPTION = "--measured"

MAX_RATIO = 50.0
"""Largest ratio of measured and predicted time that is no mistake of units. Chosen: public runs differ at most by 8."""

MAX_AWAY = 6.0
"""Standard deviations from which on a run contradicts the others. Chosen: runs of most public stacks stay below 4."""

MAX_CHECKED = 60
"""Largest number of runs of which each is checked against the others. Chosen: some seconds."""

SURE = 0.99
"""Predicted probability of a run's outcome, the opposite of the measured one, from which a warning is due. Chosen."""

MAX_REPEATED = 1.3
"""Largest ratio of two measured times of one configuration. Chosen: public repetitions differ at most by 16 %."""

MAX_PEAK_RATIO = 10.0
"""Largest ratio of predicted and measured peak that is no mistake of units or of the GPU. Chosen."""

RESERVED_OVER_ALLOCATED = 1.04
"""Peak of reserved over that of allocated memory: mean of the 24 runs of SimuMax on B200 with both, 1.03 to 1.07."""

DIGITS = 6
"""Decimals of terms and ratios of measured runs. Chosen: far below the noise of a run."""

FAR_PEAK = 3.0
"""Standard deviations from which on a peak is far from the prediction. Chosen."""

ROOM_OVER_PEAK = 1.005
"""Usable memory of a GPU over a peak that fitted in it, at least. Chosen: a peak that just fits is no risk."""

KEY_BYTES = 6
"""Length of the digest that a run's memory is known by, bytes."""

_FIGURE = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)\s*"
    r"(?P<unit>ms|s|min|(?P<memory>gib|gb)(?::(?P<kind>reserved|allocated|nvidia-smi))?)?"
)
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0}
OOM, RAN_OUT = "oom", "out of memory"
"""Figure of a run that ran out of memory, as typed and as shown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    """
    Measured run: its place for errors, its job, configuration and placement, and what was measured.

    Parameters
    ----------
    time_s
        Seconds of an iteration; ``None`` if they were not measured.
    memory
        Measured memory, or that the run ran out of it; ``None`` if unknown.
    evidence
        File that the figure is in or of, and row or figure: equal for a run that is given twice.
    """

    place: str
    instance: Instance
    config: ParallelConfig
    placement: Placement
    time_s: float | None = None
    memory: MemoryRun | None = None
    evidence: tuple[object, ...] = ()


def with_measured(job: Job, words: Sequence[str] | None) -> Job:
    """
    Return the job with the measured runs as anchors of its stack, whose constants they may move.

    The job itself without any run.

    Parameters
    ----------
    words
        ``train.sh=98.2s``: a launch script or file of Megatron arguments, and seconds of an iteration.
        ``=61.3GiB``: the peak of the fullest GPU, as ``:reserved`` (default) or ``:allocated`` by PyTorch, or by
        ``:nvidia-smi``. ``=oom``: it ran out of memory. ``=run.log``: what the log of its run says. A launch alone: its
        log is beside it. A launch is a script, a file of arguments, a folder that ``export`` wrote, or a plan. Or a log
        of Megatron-LM, a folder of logs, or a ``runs.csv``.

    Raises
    ------
    InputError
        If a word cannot be read, if a time is impossible, or if two runs contradict each other.
    """
    if not words:
        return job
    runs = _read(job, words)
    instance = _anchored(job.instance, runs)
    timed = tuple(run.config for run in runs if run.time_s is not None and _is_of(run, job.instance))
    inputs = {**job.inputs, "stack": asdict(instance.stack)}
    return replace(job, instance=instance, inputs=inputs, measured_configs=tuple(dict.fromkeys(timed)))


def with_anchors(
    instance: Instance,
    words: Sequence[str],
    num_gpus: int | None = None,
    cluster: ClusterSpec | None = None,
    environment: Mapping[str, str] | None = None,
) -> Instance:
    """
    Return the instance with further anchors of its stack; see :func:`with_measured`.

    Parameters
    ----------
    num_gpus
        Number of GPUs of launches; ``None`` for all GPUs of the cluster.
    cluster
        Hosts that launches ran on; by default those of the instance.
    environment
        Variables of launch scripts.
    """
    started = replace(instance, cluster=cluster or instance.cluster)
    job = Job(instance=started, num_gpus=num_gpus, inputs={}, environment=environment or {})
    return _anchored(instance, _read(job, words))


def _read(job: Job, words: Sequence[str]) -> list[_Run]:
    """Return the measured runs of all words, each once; a run that is given again is logged."""
    job = replace(job, instance=unmoved(job.instance))
    found: dict[tuple[object, ...], _Run] = {}
    for run in (run for word in words for run in _runs_of(job, word)):
        known = found.setdefault(run.evidence, run)
        if known is not run:
            logger.warning("%s counts once: it is the run of %s.", run.place, known.place)
    return list(found.values())


def _anchored(instance: Instance, runs: Sequence[_Run]) -> Instance:
    """Return the instance with measured runs as further anchors of its stack, whose constants they may move."""
    _check_memories(runs)
    before = instance.stack.unmoved
    anchors = list(before.anchors)
    known = {_figures_of(anchor) for anchor in anchors}  # a plan may already start from a run that is given again
    for run in [run for run in runs if run.time_s is not None]:
        assert run.time_s is not None
        predicted_s, terms = described_plan(run.instance, run.config, run.placement)
        _check_time(run, job_factor(run.instance) * predicted_s)
        anchor = Anchor(
            run=f"{run.place}: {three_digits(run.time_s)} s",
            terms=_rounded(terms),
            log_ratio=round(log(run.time_s / predicted_s), DIGITS),
            reference=_rounded(reference_terms(run.instance)),
        )
        anchors += [] if _figures_of(anchor) in known else [anchor]
    _check_repetitions(anchors)
    _warn_of_a_surprise(before, anchors)
    _warn_of_strays(before, anchors)
    _say_of_other_jobs(replace(instance, stack=before), anchors)
    stack = replace(_with_memory(before, runs), anchors=tuple(anchors))
    return replace(instance, stack=moved(replace(instance, stack=stack)))


def _say_of_other_jobs(instance: Instance, anchors: Sequence[Anchor]) -> None:
    """Log which measured runs are of another job: the first, and how many others."""
    ours = reference_terms(instance)
    others = [anchor.run for anchor in anchors if not np.allclose(anchor.reference, ours, atol=SAME)]
    if others:
        logger.warning(
            "%s%s is of another model, batch, precision or GPU type: it moves the times of this job in part.",
            others[0],
            f" (as {counted(len(others) - 1, 'other run')})" if others[1:] else "",
        )


def _figures_of(anchor: Anchor) -> tuple[object, ...]:
    return anchor.terms, anchor.log_ratio, anchor.reference


def _rounded(terms: FloatArray) -> tuple[float, ...]:
    return tuple(round(value, DIGITS) for value in terms.tolist())


def in_worlds(job: Job) -> Job:
    """Return the job on the stack that its worlds are about: as it was before measured runs moved its constants."""
    if not job.instance.stack.moved_from:
        return job
    instance = unmoved(job.instance)
    return replace(job, instance=instance, inputs={**job.inputs, "stack": asdict(instance.stack)})


def variables_of_runs(env: Sequence[str] | None, words: Sequence[str] | None) -> dict[str, str]:
    """Return the variables of measured launch scripts; ``InputError`` if they are given without a measured run."""
    if env and not words:
        raise InputError("--env", f"has no effect without {OPTION}, whose launch scripts read these variables.")
    return script_environment(env)


def own_runs(job: Job, words: Sequence[str] | None) -> tuple[OwnRun, ...]:
    """Return the measured runs that are of the job itself, on its hosts: with a time, or that ran out of memory."""
    found = []
    for run in _read(job, words or ()):
        has_failed = run.memory is not None and run.memory.ran_out is True
        if _is_of(run, job.instance) and (run.time_s is not None or has_failed):
            found.append(OwnRun(place=run.place, config=run.config, time_s=run.time_s))
    return tuple(found)


def _is_of(run: _Run, instance: Instance) -> bool:
    """Return whether a run is of the job itself, on its hosts."""
    is_same = is_same_model(instance.model, run.instance.model) and run.instance.training == instance.training
    return is_same and set(run.instance.cluster.hosts) <= set(instance.cluster.hosts)


def _with_memory(stack: StackSpec, runs: Sequence[_Run]) -> StackSpec:
    """Return the stack with memory constants moved by measured peaks and by runs out of memory, each run once."""
    measured = {_memory_record(run, run.memory): run.memory for run in runs if run.memory is not None}
    known = {record.key for record in stack.memory_runs}
    new = {record.key: (record, memory) for record, memory in measured.items() if record.key not in known}
    if not new:
        return stack
    moved = moved_constants([memory for _, memory in new.values()], stack.memory)
    for has_failed in (True, False):
        _warn_of_untold(moved, [(record, run) for record, run in new.values() if run.ran_out is has_failed])
    ran = dict(moved.ran)
    for key, capacity_gib in (rank for run in runs for rank in _ranks_that_fitted(run)):
        ran[key] = min(capacity_gib, ran.get(key, capacity_gib))
    _warn_of_far_peaks(stack.memory, list(new.values()))
    peaks, unusable_gib = dict(moved.peaks), moved.unusable_gib
    for run, memory, peak_gib in ((run, run.memory, run.memory.peak_gib) for run in runs if run.memory):
        if peak_gib is None:
            continue
        key = config_key(_ranks(run.instance, run.config))
        peaks[key] = max(peak_gib, peaks.get(key, 0.0))
        unusable_gib = min(unusable_gib, max(memory.capacity_gib - ROOM_OVER_PEAK * peak_gib, 0.0))
    return replace(
        stack,
        memory=replace(moved, ran=ran, peaks=peaks, unusable_gib=unusable_gib),
        memory_runs=(*stack.memory_runs, *(record for record, _ in new.values())),
    )


def _warn_of_far_peaks(constants: MemoryConstants, runs: Sequence[tuple[MeasuredMemory, MemoryRun]]) -> None:
    """Log a warning for a peak far from what was predicted before: the first, and how many others."""
    far = []
    for record, run in runs:
        memory = predict_memory(constants, run)
        if run.peak_gib is not None and abs(log(run.peak_gib / memory.taken_gib)) > FAR_PEAK * memory.taken_spread:
            far.append((record, memory.taken_gib))
    for record, taken_gib in far[:1]:
        logger.warning(
            "%s is far from the predicted %.3g GiB%s. Does the launch have all options of the run, and its GPU no "
            "other process?",
            record.run,
            taken_gib,
            f" (as {counted(len(far) - 1, 'other run')})" if far[1:] else "",
        )


def _ranks(instance: Instance, config: ParallelConfig) -> tuple[str, ...]:
    """Return the rank key of each stage of a configuration; see :func:`~pipette_opt.memory.twins.rank_keys`."""
    return stage_ranks(
        instance.model,
        instance.training,
        config,
        gpus_per_node=instance.cluster.gpus_per_node,
        intra_node_bytes_per_s=instance.cluster.intra_node_bytes_per_s,
    )


def _ranks_that_fitted(run: _Run) -> list[tuple[str, float]]:
    """
    Return the rank key of each stage of a run that fitted, and the memory of the smallest GPU that held it, GiB.

    Stages that recompute more layers fit there, too.
    """
    if run.memory is None or run.memory.ran_out is not False:
        return []
    instance, placement, cluster = run.instance, run.placement, run.instance.cluster
    hosts = placement.node[RankGrid.of(run.config, placement.order).ranks()]
    hosts = hosts.reshape(run.config.pipeline_model_parallel_size, -1)
    memory_gib = np.array([node.gpu.memory_bytes / GIB for node in cluster.nodes])[hosts].min(axis=1).tolist()
    found = []
    for config in needing_no_more(run.config, instance.model):
        found += list(zip(_ranks(instance, config), memory_gib, strict=True))
    return found


def _warn_of_untold(moved: MemoryConstants, runs: Sequence[tuple[MeasuredMemory, MemoryRun]]) -> None:
    """Log a warning if the moved constants still rule out failures, or successes: the first, and how many others."""
    untold = []
    for record, run in runs:
        memory = predict_memory(moved, run)
        risk = oom_probability(replace(memory, needed_unknown=0.0))  # by the moved constants
        if (1 - risk if run.ran_out else risk) > SURE:
            untold.append((record, run, memory))
    for record, run, memory in untold[:1]:
        place, _, figure = record.run.rpartition(": ")
        did = {FITS: "fitted", RAN_OUT: "ran out of memory"}.get(figure, f"had a peak of {figure}")
        logger.warning(
            "%s %s, but the predicted need is %.3g GiB, of %.3g usable: too far off to move it%s. %s",
            place,
            did,
            memory.needed_gib,
            memory.usable_gib,
            f" (as {counted(len(untold) - 1, 'other run')})" if untold[1:] else "",
            "Was it the host's memory, or another process on the GPU?"
            if run.ran_out
            else "Does the launch have all options of the run?",
        )


def _memory_record(run: _Run, memory: MemoryRun) -> MeasuredMemory:
    """Return the record of a run's memory in the stack."""
    figure = FITS if memory.peak_gib is None else f"{memory.peak_gib:.3g} GiB"
    figure = RAN_OUT if memory.ran_out else figure
    digest = blake2b(memory.regressors.tobytes() + figure.encode(), digest_size=KEY_BYTES).hexdigest()
    return MeasuredMemory(run=f"{run.place}: {figure}", key=digest)


def _runs_of(job: Job, word: str) -> Iterator[_Run]:
    """Yield the measured runs of one word of ``--measured``."""
    if not word.strip():
        raise InputError(OPTION, "is empty; give LAUNCH=98.2s, a log or a runs.csv.")
    place, equals, figure = word.rpartition("=")
    path, is_path = Path(word), is_file(word) or is_folder(word)
    if equals and not is_path:
        yield _launched(job, place, word, figure.strip())
        return
    if path.suffix.lower() == ".csv":
        runs = [(f"{word}, row {run.row}", (*_file_of(path), run.row), run) for run in read_runs(path)]
    elif is_file(path / TUNE) or is_file(path / RECORD):
        yield from _trials(job, path)
        return
    elif is_folder(path) and is_exported(path) and not _logs_in(path):
        raise InputError(word, f"is a launch without a figure and without a log; give {word}=98.2s.")
    elif path.suffix.lower() in SUFFIXES or is_folder(path):
        runs = _logged(job, path)
    elif is_path:
        yield _with_log(_launch(job, word), _logs_beside(path))
        return
    else:
        raise InputError(OPTION, f"must be LAUNCH=98.2s, a log ({', '.join(SUFFIXES)}) or a runs.csv, got {word!r}.")
    found = [(read, evidence) for place, evidence, run in runs if (read := _row(job, place, run)) is not None]
    if not found:
        raise InputError(word, "has no run with a measured time, peak or failure.")
    yield from (replace(run, evidence=evidence) for run, evidence in found)


def _file_of(path: str | Path) -> tuple[int, ...] | tuple[str]:
    """Return a key of a file that all its paths and links share; for arguments without a file, the arguments."""
    if not is_file(path):
        return (str(path),)
    status = Path(path).stat()
    return status.st_dev, status.st_ino


def _logs_in(folder: Path) -> list[Path]:
    """Return the files in a folder that may be logs: by their suffix, without those that ``export`` wrote."""
    exported = exported_hashes(folder)
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.name not in exported)


def _logs_beside(launch: Path) -> list[Path]:
    """Return the logs in the folder of a launch; ``InputError`` if there are none."""
    logs = [log for log in _logs_in(launch.parent) if log != launch]
    if not logs:
        raise InputError(
            str(launch), f"has no figure, and no log is beside it; give {launch}=98.2s or {launch}=run.log."
        )
    return logs


def _trials(job: Job, folder: Path) -> Iterator[_Run]:
    """Yield the finished trials in a folder of ``tune``, or that of a trial."""
    is_trial = is_file(folder / RECORD)
    tuned = TuneFolder(folder.resolve().parent if is_trial else folder)
    for record in tuned.records():
        if is_trial and tuned.trial(record.trial) != folder.resolve():
            continue
        if record.status not in ("timed", "ran out"):
            continue
        run = _planned(job, tuned.trial(record.trial) / PLAN)
        peak_gib = None if record.peak_bytes is None else record.peak_bytes / GIB
        memory = _memory(run, peak_gib, ran_out=record.status == "ran out")
        yield replace(run, time_s=record.time_s, memory=memory)


def _launched(job: Job, place: str, word: str, figure: str) -> _Run:
    """Return a run of a launch with its figure, or with what its log says."""
    match, is_log = _FIGURE.fullmatch(figure.lower()), Path(figure).suffix.lower() in SUFFIXES
    if match is not None and match["unit"] is None:
        raise InputError(OPTION, f"has a figure without a unit, {word!r}; give {place}={figure}s if it is in seconds.")
    if figure.lower() != OOM and not is_log and (match is None or not 0 < float(match["number"]) < inf):
        raise InputError(
            OPTION,
            "must end in a time (=98.2s; ms, s or min), a peak (=61.3GiB or GB, with :reserved, :allocated or "
            f":nvidia-smi), a log (=run.log) or =oom, got {word!r}.",
        )
    if not place.strip():
        raise InputError(OPTION, f"has no launch before the figure; give it as train.sh{word}.")
    run = _launch(job, place)
    if is_log:
        if not is_file(figure):
            raise InputError(figure, f"is to be the log of {place}, but does not exist.")
        return _with_log(run, [Path(figure)])
    run = replace(run, evidence=(*run.evidence, figure.lower().replace(" ", "")))
    if match is None:
        return replace(run, memory=_memory(run, None, ran_out=True))
    if match["memory"]:
        peak_gib = float(match["number"]) * (1.0 if match["memory"] == "gib" else GB / GIB)
        return replace(run, memory=_memory(run, peak_gib, match["kind"] or "reserved"))
    return replace(run, time_s=float(match["number"]) * _SECONDS[match["unit"]], memory=_memory(run, None))


def _with_log(run: _Run, logs: Sequence[Path]) -> _Run:
    """Return a run with the time, peak or failure in the only one of these logs that is of it."""
    training = run.instance.training
    expected = expected_arguments(run.config, training.global_batch_size, training.seq_length)
    found = {log: read_result([log], expected) for log in logs}
    results = {log: result for log, result in found.items() if isinstance(result, LogResult)}
    if len(results) > 1:
        raise InputError(run.place, f"has several logs: {', '.join(map(str, results))}; give {run.place}={logs[0]}.")
    if not results:
        reasons = "; ".join(result.problem for result in found.values() if isinstance(result, NoResult))
        raise InputError(run.place, f"has no result in {', '.join(map(str, logs))}: {reasons}.")
    log, result = next(iter(results.items()))
    run = replace(run, evidence=_file_of(log))
    if result.ran_out:
        return replace(run, memory=_memory(run, None, ran_out=True))
    peak_gib = None if result.peak_bytes is None else result.peak_bytes / GIB
    return replace(run, time_s=result.time_s, memory=_memory(run, peak_gib))


def _launch(job: Job, place: str) -> _Run:
    """Return a run of a launch of which nothing is measured yet."""
    is_json = Path(place).suffix.lower() == ".json" and not is_folder(place)
    return _planned(job, Path(place)) if is_json and not _is_launch(place) else _started(job, place)


def _is_launch(place: str) -> bool:
    """Return whether a JSON file is a launch, as ``capture`` writes it or as the settings of a framework."""
    text = read_text(place)
    file = settings_file(text, place)
    return is_launch(text) or (file is not None and file.framework is not None)


def _planned(job: Job, path: Path) -> _Run:
    """Return a run of a plan."""
    plan = read_plan(path)
    instance = on_hosts_of(plan, job_of(plan, path))
    instance = replace(instance, stack=job.instance.stack.unmoved)
    return _Run(
        place=str(path),
        instance=instance,
        config=plan.config,
        placement=plan.placement,
        evidence=_file_of(path),
    )


def _started(job: Job, place: str) -> _Run:
    """Return a run of a script or a file of arguments, on the hosts that an export names, else on the job's first."""
    if is_folder(place) or Path(place).name == ARGUMENTS:  # the script beside the arguments says how many GPUs run
        place = str(launch_in(Path(place) if is_folder(place) else Path(place).parent))
    given = read_megatron_args(place, OPTION, job.environment)
    training, cluster = job.instance.training, job.instance.cluster
    available = cluster.num_nodes * cluster.gpus_per_node
    num_gpus = given.num_processes or _started_gpus(job, given) or job.num_gpus
    sizes: dict[str, Any] = {
        "global_batch_size": given.batch_on(num_gpus or available) or training.global_batch_size,
        "seq_length": given.seq_length or training.seq_length,
    }
    model = given.model or job.instance.model
    theirs = replace(job, instance=replace(job.instance, model=model, training=replace(training, **sizes)))
    instance = as_trained(theirs, given)
    check_one_model(model, instance.training, given)
    if num_gpus is not None and num_gpus > available:
        raise InputError(
            place, f"starts {num_gpus} GPUs, but the job's hosts have {available}; give a larger run in a runs.csv."
        )
    config = legal_config(instance, given, num_gpus or available)
    nodes = np.arange(-(-config.world_size // cluster.gpus_per_node))
    placement = exported_placement(given, config, cluster)
    return _Run(
        place=place if is_file(place) else shown(place),
        instance=instance,
        config=config,
        placement=placement or identity_placement(config, cluster.gpus_per_node, nodes, given.rank_order),
        evidence=_file_of(place),
    )


def _started_gpus(job: Job, given: MegatronArgs) -> int | None:
    """Return the number of GPUs that a launch starts, by launchers or ``#SBATCH`` lines; ``None`` if unknown."""
    script = read_words(given.text, given.where, job.environment).script
    if script is None or script.launch is None:
        return None
    hosts = script.launch.num_nodes or whole_number(script.header.get("nodes", ""))
    return script.launch.num_processes or (hosts and hosts * job.instance.cluster.gpus_per_node)


def _memory(run: _Run, peak_gib: float | None, kind: str = "reserved", *, ran_out: bool = False) -> MemoryRun:
    """
    Return the measured memory of a launch that fitted, or that ran out of memory.

    Parameters
    ----------
    peak_gib
        Measured peak; ``None`` if it is unknown.
    kind
        Memory that the peak counts: reserved by PyTorch's allocator, given to tensors, or all that the device uses.
    """
    instance, cluster = run.instance, run.instance.cluster
    decisive = max if peak_gib is None and not ran_out else min  # on mixed GPUs a run may fit only on the largest
    capacity_gib = decisive(gpu.memory_bytes for gpu in cluster.gpu_kinds) / GIB
    if peak_gib is not None and peak_gib > capacity_gib:
        raise InputError(run.place, f"{peak_gib:.4g} GiB is more than the {capacity_gib:.4g} GiB of a GPU.")
    regressors = np.concatenate(
        stack_predictor(instance.stack).regressors(
            instance.model,
            instance.training,
            [run.config],
            gpus_per_node=cluster.gpus_per_node,
            intra_node_bytes_per_s=cluster.intra_node_bytes_per_s,
        )
    )
    predicted_gib = float((regressors @ instance.stack.memory.vector()).max())
    if peak_gib is not None and MAX_PEAK_RATIO * peak_gib < predicted_gib:
        raise InputError(
            run.place,
            f"{peak_gib:.3g} GiB is less than a {MAX_PEAK_RATIO:.0f}th of the predicted {predicted_gib:.3g} GiB; give "
            "the peak of the fullest GPU.",
        )
    if peak_gib is not None and kind == "allocated":
        peak_gib *= RESERVED_OVER_ALLOCATED
    if peak_gib is not None and kind == "nvidia-smi":
        memory_constants = instance.stack.memory
        outside = float((regressors @ (memory_constants.vector() * HIDDEN)).max())
        peak_gib = max(peak_gib - memory_constants.unusable_gib - outside, 1e-3)
    return MemoryRun(
        regressors=regressors,
        measured_rows=np.arange(len(regressors)),
        capacity_gib=capacity_gib,
        peak_gib=peak_gib,
        ran_out=ran_out,
        num_gpus=run.config.world_size,
    )


def _logged(job: Job, path: Path) -> list[tuple[str, tuple[object, ...], MeasuredRun]]:
    """Return the runs of a log, or of a folder of logs, of Megatron-LM, each with its log and its evidence."""
    cluster = job.instance.cluster
    text, notes = import_runs([path], gpu=cluster.gpu_kinds[0].name, gpus_per_node=cluster.gpus_per_node)
    for note in notes:
        if "left out" in note or "not read" in note:
            logger.warning("%s: %s", path, note)
    found: list[tuple[str, tuple[object, ...], MeasuredRun]] = []
    for index, cells in enumerate(csv.DictReader(text.splitlines())):
        file = path if is_file(path) else path / cells["notes"].partition(";")[0]
        found.append((str(file), _file_of(file), read_row(str(file), index, cells, path)))
    return found


def _row(job: Job, place: str, run: MeasuredRun) -> _Run | None:
    """Return a run of a table on the hosts of the job; ``None`` if nothing was measured."""
    time_s = None if run.oom else run.iter_time_s
    if time_s is None and run.peak_mem_bytes is None and run.oom is None:
        return None
    cluster, per_node = job.instance.cluster, job.instance.cluster.gpus_per_node
    num_hosts = -(-run.num_gpus // per_node)
    is_ours = run.gpus_per_node == per_node and num_hosts <= cluster.num_nodes
    is_ours = is_ours and run.gpu is not None and [run.gpu.gpu.name] == [gpu.name for gpu in cluster.gpu_kinds]
    ours = subset_cluster(cluster, cluster.hosts[:num_hosts]) if is_ours else None
    case = make_case(run, job.instance.stack, ours)
    reason = case.reason if isinstance(case, Skipped) else why_untimed(case)
    if isinstance(case, Skipped) or reason:
        raise InputError(place, f"cannot be predicted: {reason}.")
    memory = memory_run(case)
    if memory.ran_out is None and time_s is not None and not ran_out_later(run):  # a run that has a time fitted
        memory = replace(memory, ran_out=False)
    has_memory = memory.peak_gib is not None or memory.ran_out is not None
    return _Run(
        place=place,
        instance=case.instance,
        config=case.config,
        placement=case.placement,
        time_s=time_s,
        memory=memory if has_memory else None,
    )


def _check_time(run: _Run, predicted_s: float) -> None:
    """Raise ``InputError`` for a time that the GPUs cannot reach, or that is in another unit."""
    least_s = peak_gpu_seconds(run.instance) / run.config.world_size
    assert run.time_s is not None
    if run.time_s < least_s:
        raise InputError(
            run.place,
            f"{three_digits(run.time_s)} s is impossible: {run.config.world_size} GPUs at their peak need "
            f"{three_digits(least_s)} s for the model's FLOPs; give seconds of a whole iteration.",
        )
    if run.time_s > MAX_RATIO * predicted_s:
        raise InputError(
            run.place,
            f"{three_digits(run.time_s)} s is {run.time_s / predicted_s:,.0f} times the predicted "
            f"{three_digits(predicted_s)} s; give seconds of one iteration.",
        )


def _warn_of_a_surprise(stack: StackSpec, anchors: Sequence[Anchor]) -> None:
    """Log a warning if the only run is far from its prediction: it makes the bands of other layouts wide."""
    for anchor in anchors if len(anchors) == 1 else ():
        worlds, terms = anchored_stack(replace(stack, anchors=())), np.array([anchor.terms])
        usual = float(job_means(stack, np.array(anchor.reference), worlds.prior))
        low, _, high = np.log(replace(worlds, job_mean=usual).bands(terms, SURE)[0]).tolist()
        if not low < anchor.log_ratio < high:
            logger.warning(
                "%s is %s times the expected time, so other layouts have wide bands. Does the launch have all options "
                "of the run?",
                anchor.run,
                three_digits(exp(anchor.log_ratio - usual)),
            )


def _warn_of_strays(stack: StackSpec, anchors: Sequence[Anchor]) -> None:
    """Log a warning for each run that all others contradict: far from its time in the worlds that they leave."""
    for anchor in anchors if 1 < len(anchors) <= MAX_CHECKED else ():
        others = tuple(other for other in anchors if other is not anchor)
        worlds = anchored_stack(replace(stack, anchors=others))
        usual = job_means(stack, np.array(anchor.reference), worlds.prior)
        mean, sd = worlds.mean_and_sd(np.array([anchor.terms]), measured=True)
        away = anchor.log_ratio - float(usual + mean[0])
        if abs(away) > MAX_AWAY * float(sd[0]):
            logger.warning(
                "%s contradicts the other measured runs: by them it takes %s times %s.",
                anchor.run,
                three_digits(exp(abs(away))),
                "less" if away > 0 else "as long",
            )


def _check_memories(runs: Sequence[_Run]) -> None:
    """Raise ``InputError`` if a configuration both fits and ran out of memory, or if two of its peaks differ."""
    for first, second in combinations(runs, 2):
        if not _are_alike(first, second):
            continue
        failed = [run for run in (first, second) if run.memory is not None and run.memory.ran_out]
        if len(failed) == 1:
            fits = second if failed[0] is first else first
            raise InputError(
                OPTION,
                f"{failed[0].place} ran out of memory, but {fits.place} {_figure_of(fits)}, and both are of one "
                "configuration; leave one of them out.",
            )
        peaks = [run.memory.peak_gib for run in (first, second) if run.memory and run.memory.peak_gib is not None]
        if len(peaks) == 2 and max(peaks) > MAX_REPEATED * min(peaks):
            raise InputError(
                OPTION,
                f"{first.place}: {peaks[0]:.3g} GiB and {second.place}: {peaks[1]:.3g} GiB are of one configuration, "
                f"but differ by a factor of {max(peaks) / min(peaks):.3g}; leave one of them out.",
            )


def _are_alike(first: _Run, second: _Run) -> bool:
    """Return whether two runs are of one configuration of one job, on GPUs with equal memory."""
    ours, theirs = (
        (run.config, run.instance.model, run.instance.training, [gpu.memory_bytes for gpu in kinds])
        for run, kinds in ((run, run.instance.cluster.gpu_kinds) for run in (first, second))
    )
    return ours == theirs


def _figure_of(run: _Run) -> str:
    """Return the time or the peak of a run that fits in memory, for people."""
    if run.time_s is not None:
        return f"took {three_digits(run.time_s)} s"
    if run.memory is not None and run.memory.peak_gib is not None:
        return f"has a peak of {run.memory.peak_gib:.3g} GiB"
    return "did not"


def _check_repetitions(anchors: Sequence[Anchor]) -> None:
    """Raise ``InputError`` if two runs of one configuration contradict each other."""
    for first, second in combinations(anchors, 2):
        ratio = exp(abs(first.log_ratio - second.log_ratio))
        if first.terms == second.terms and ratio > MAX_REPEATED:
            raise InputError(
                OPTION,
                f"{first.run} and {second.run} are of one configuration, but differ by a factor of {ratio:.3g}; "
                "leave one of them out.",
            )
