"""Predictions of measured runs with bands, moved by the runs that the stack was calibrated with."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.described import describe_cases, references_of
from pipette_opt.calibrate.predict import Prediction
from pipette_opt.specs import ClusterSpec, StackSpec
from pipette_opt.worlds.factor import anchored_stack, job_factors, job_means
from pipette_opt.worlds.prior import shipped_priors


def with_bands(predictions: Sequence[Prediction], stack: StackSpec, cluster: ClusterSpec | None) -> list[Prediction]:
    """
    Return the predictions with bands.

    Parameters
    ----------
    stack
        Stack of the predictions. With anchors of its own, times are multiplied by the factors of their jobs.
    """
    timed = [index for index, prediction in enumerate(predictions) if prediction.iter_time_s is not None]
    made = make_cases([predictions[index].run for index in timed], stack.unmoved, cluster)
    cases = [case for case in made if isinstance(case, Case)]
    assert len(cases) == len(timed)
    result = list(predictions)
    if not cases:
        return result
    prior = shipped_priors().all_sources
    unmoved_s, terms = describe_cases(cases, cluster)
    references = references_of(cases)
    predicted_s = np.array([predictions[index].iter_time_s for index in timed], dtype=np.float64)
    usual = np.exp(job_means(stack, references, prior)) * unmoved_s / predicted_s
    low, _, high = (anchored_stack(stack, prior).bands(terms) * usual[:, None]).T
    middle = job_factors(stack, references, prior)
    bands = np.column_stack([np.minimum(low, middle), middle, np.maximum(high, middle)]) * predicted_s[:, None]
    for index, (low_s, time_s, high_s) in zip(timed, bands.tolist(), strict=True):
        moved = {"iter_time_s": time_s} if stack.anchors else {}
        result[index] = replace(predictions[index], low_s=low_s, high_s=high_s, **moved)
    return result
