"""What runs taught is in the costs, and only where it was taught."""

from dataclasses import replace

import pytest
from factories import A100_80, make_cluster, make_config, make_job

from pipette_opt.costs.compute import layer_times_s
from pipette_opt.costs.learned import layer_shape
from pipette_opt.specs import ComputeProfile, ProfileKey
from pipette_opt.specs.layers import LearnedLayers


def test_layers_take_what_was_learned() -> None:
    """A fifth longer both ways, with recomputation too; another micro-batch and a measured layer are as they were."""
    job, one = make_job(make_cluster(1)), make_config(recompute_granularity="full")
    shape = layer_shape(job, one, A100_80)
    assert shape is not None
    stack = replace(job.stack, layers=LearnedLayers(shapes=(replace(shape, factor=1.2),)))
    taught = replace(job, stack=stack)
    expected = tuple(1.2 * time for time in layer_times_s(job, one, A100_80))
    assert layer_times_s(taught, one, A100_80) == pytest.approx(expected, rel=1e-4)
    other = replace(one, micro_batch_size=16 * one.micro_batch_size)
    assert layer_times_s(taught, other, A100_80) == pytest.approx(layer_times_s(job, other, A100_80), rel=1e-3)
    key = ProfileKey(
        gpu=A100_80.name,
        tensor_model_parallel_size=one.tensor_model_parallel_size,
        micro_batch_size=one.micro_batch_size,
        seq_length=job.training.seq_length,
    )
    profiled = replace(taught, profile=ComputeProfile(layers={key: (1e-3, 2e-3)}))
    assert layer_times_s(profiled, one, A100_80) == pytest.approx((1e-3, 3e-3))


def test_groups_over_several_hosts_teach_nothing() -> None:
    """Their time is the network's; parts of a sequence are other shapes."""
    job = make_job(make_cluster(4))
    eight = make_config(tensor_model_parallel_size=8)
    assert layer_shape(job, eight, A100_80) is not None
    assert layer_shape(job, replace(eight, tensor_model_parallel_size=16), A100_80) is None
    assert layer_shape(job, replace(eight, context_parallel_size=2), A100_80) is None
