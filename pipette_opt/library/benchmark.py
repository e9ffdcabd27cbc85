"""``benchmark solve``: the solver beside baselines on one job."""

from dataclasses import replace
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.baselines.compare import MethodRow, compare_methods, prepare_all
from pipette_opt.job.read import read_job
from pipette_opt.job.space import search_space
from pipette_opt.library.arguments import Named, Told, argument_errors, described, params_of, watcher_of
from pipette_opt.options.names import option_name
from pipette_opt.options.questions import NOT_COMPARED, LimitOptions
from pipette_opt.options.values import given_of
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec


@argument_errors()
def compare(
    cluster: Named | ClusterSpec | None = None,
    model: Named | ModelSpec | None = None,
    *,
    training: TrainingSpec | None = None,
    time_limit_s: float = 30.0,
    on_progress: Told | None = None,
    **options: Any,
) -> list[MethodRow]:
    """
    Compare the solver with baselines on a job, with equal seconds; fewer rows if stopped.

    Parameters
    ----------
    cluster, model, training
        The job, as in :func:`~pipette_opt.solve`.
    time_limit_s
        Seconds of each method.
    on_progress
        Callback for progress, as in :func:`~pipette_opt.solve`.
    options
        The job and its degrees, as in :func:`~pipette_opt.solve`, and fields of
        :class:`~pipette_opt.options.questions.LimitOptions`.

    Raises
    ------
    InputError
        If an argument or a file is wrong, or the comparison fixes an option that is given.
    """
    job, pinned, made, limits = described(cluster, model, training, options, LimitOptions)
    for name in given_of(job, pinned):
        if name in NOT_COMPARED:
            raise InputError(option_name(name), "has no effect: the comparison fixes it, or no baseline knows it.")
    read = replace(read_job(job, made), tp_comm_overlap=False)
    fixed = replace(pinned, virtual_pipeline=(1,), context_parallel=(1,), overlap_grad_reduce=False)
    params, watcher = params_of(limits, time_limit_s=time_limit_s), watcher_of(on_progress)
    prepared = prepare_all(read.instance, search_space(read, fixed), params, watcher)
    return compare_methods(prepared, params, watcher)
