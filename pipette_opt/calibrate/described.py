"""Terms of predictions of measured runs, see :mod:`pipette_opt.worlds.terms`, and of their jobs' reference layouts."""

from collections.abc import Hashable, Sequence

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, with_stack
from pipette_opt.calibrate.predict import KnownCosts, simulated_times_s, with_version_s
from pipette_opt.specs import ClusterSpec
from pipette_opt.worlds.reference import reference_terms
from pipette_opt.worlds.terms import features_of, stacks_of, terms_of


def describe_cases(cases: Sequence[Case], cluster: ClusterSpec | None = None) -> tuple[FloatArray, FloatArray]:
    """
    Return predicted times and terms of measured runs, which may be of different jobs.

    Parameters
    ----------
    cases
        Runs with instances of one stack.
    cluster
        Hosts of the runs; ``None`` for assumed hosts, whose links follow the stack.

    Returns
    -------
    tuple
        Predicted seconds, shape ``(num_cases,)``, and terms, shape ``(num_cases, num_terms)``.
    """
    known: KnownCosts = {}
    stacks = stacks_of(cases[0].instance.stack)
    of_stacks = [with_stack(cases, stack, cluster) for stack in stacks]
    times = np.array([with_version_s(ours, simulated_times_s(ours, known)) for ours in of_stacks])
    iteration_s = np.array([case.instance.stack.iteration_s for case in cases])
    features = np.array([features_of(case.instance, case.config) for case in cases])
    return times[0], terms_of(times, iteration_s, features)


def references_of(cases: Sequence[Case]) -> FloatArray:
    """Return the terms of the reference layout of each run's job, shape ``(num_cases, num_terms)``."""
    known: dict[Hashable, FloatArray] = {}
    found = []
    for case in cases:
        instance, cluster = case.instance, case.instance.cluster
        hosts = [node.gpu.name for node in cluster.nodes], cluster.gpus_per_node, cluster.intra_node_bytes_per_s
        key = (instance.model, instance.training, str(hosts))
        if key not in known:
            known[key] = reference_terms(instance)
        found.append(known[key])
    return np.array(found)
