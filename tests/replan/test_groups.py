"""Interleaving in groups of more micro-batches than stages, near plans that do not interleave."""

from dataclasses import replace

import numpy as np
import pytest
from factories import HOST_ORDER, make_config, plan_of, small_config, small_instance

from pipette_opt.parallel.schedule import build_schedule, has_group, max_in_flight, num_in_flight, smallest_group
from pipette_opt.replan.groups import grouped
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import LinkMatrix


def test_order_of_a_smaller_last_group_by_hand() -> None:
    """Five micro-batches in groups of three on two stages of two chunks: the last group has two."""
    schedule = build_schedule(2, 5, 2, 3)
    assert schedule.text().splitlines()[1] == (
        "F0.0 F1.0 F2.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.0 B0.0 F4.0 B1.0 F3.1 B2.0 F4.1 B3.1 B4.1 B3.0 B4.0"
    )
    assert max_in_flight(schedule).tolist() == [6, 4]
    assert num_in_flight(2, 0, 2, 6) == max_in_flight(build_schedule(2, 6, 2))[0] == 5


@pytest.mark.parametrize(
    ("stages", "microbatches", "smallest"), [(5, 86, 8), (5, 85, 5), (8, 129, 10), (4, 5, 5), (4, 3, None), (2, 3, 3)]
)
def test_smallest_group(stages: int, microbatches: int, smallest: int | None) -> None:
    """The last group is whole or has a micro-batch for each stage: 86 are ten groups of eight and one of six."""
    assert smallest_group(stages, microbatches) == smallest
    sizes = [one for one in range(1, microbatches + 3) if has_group(stages, microbatches, one)]
    assert sizes[:1] == ([] if smallest is None else [smallest])
    for size in range(stages, microbatches):
        if not has_group(stages, microbatches, size):
            with pytest.raises(ValueError, match="last group is whole"):
                build_schedule(stages, microbatches, 2, size)


@pytest.mark.search
def test_groups_near_a_plan() -> None:
    """A batch that no interleaving divides: the fastest number of chunks, with what is padded, as simulated."""
    given, config = small_instance(), small_config()
    pp, replicas = config.pipeline_model_parallel_size, config.data_parallel_size
    batch = replicas * config.micro_batch_size * (2 * pp + 1)
    job = replace(given, training=replace(given.training, global_batch_size=batch))
    plan = plan_of(job, config)
    found = grouped([(job, plan)], 0.01)
    assert found is not None
    assert (found.num_microbatches, found.group_size) == (2 * pp + 1, smallest_group(pp, 2 * pp + 1))
    assert found.global_batch_size == batch
    schedule = build_schedule(pp, found.num_microbatches, found.config.num_chunks, found.group_size)
    again = estimate(job, found.config, plan.placement, schedule).iteration_time_s
    assert found.iteration_time_s == pytest.approx(again)
    assert found.iteration_time_s < plan.estimate.iteration_time_s
    assert grouped([(job, plan)], 0.01, chunks=()) is None
    fewer = replace(job, training=replace(job.training, global_batch_size=batch - 2, unequal_microbatches=True))
    padded = grouped([(fewer, plan)], 0.01)
    assert padded is not None
    assert (padded.global_batch_size, padded.iteration_time_s) == (batch, pytest.approx(found.iteration_time_s))


def test_no_groups_over_a_link_that_was_not_measured() -> None:
    """The last stage sends to the first only if stages interleave: without that link there is no such variant."""
    job = replace(small_instance(), training=replace(small_instance().training, global_batch_size=9))
    config = make_config(tp=4, pp=4, dp=1, mbs=1)
    assert grouped([(job, plan_of(job, config))], 0.01) is not None
    first, last = HOST_ORDER[0], HOST_ORDER[-1]
    links = job.cluster.link_matrices[0].bytes_per_s.copy()
    links[first, last] = links[last, first] = np.nan
    matrix = LinkMatrix(concurrent_flows=1, bytes_per_s=links)
    job = replace(job, cluster=replace(job.cluster, link_matrices=(matrix,)))
    assert grouped([(job, replace(plan_of(job, config), alternatives=()))], 0.01) is None
