"""Each source of a plan's figures is named once, with its origin."""

from dataclasses import replace

import pytest
from factories import make_cluster, make_job

from pipette_opt.plans.provenance import provenance
from pipette_opt.read.gpus import read_gpu
from pipette_opt.read.stack import read_stack
from pipette_opt.specs import ClusterSpec, Instance


def job(gpu: str, **changes: object) -> Instance:
    """Two hosts of a catalogue GPU."""
    one = make_cluster(2)
    nodes = tuple(replace(node, gpu=read_gpu(gpu)) for node in one.nodes)
    return make_job(replace(one, nodes=nodes, **changes))  # type: ignore[arg-type]


def said(given: Instance, origin: str) -> str:
    """The sentence of one origin, empty where there is none."""
    return next((line for line in provenance(given) if line.startswith(origin)), "")


def test_kernels_of_the_gpu_itself_are_measured() -> None:
    """And those of another GPU of its generation are interpolated, of another generation assumed."""
    assert "on h100-80gb" in said(job("h100-80gb"), "Measured")
    assert "on h200-141gb (kernels of h100-80gb)" in said(job("h200-141gb"), "Interpolated")
    assert "on rtx-5090 (kernels of l40s)" in said(job("rtx-5090"), "Assumed")


def test_a_gpu_of_the_users_own_is_assumed() -> None:
    """Nothing stands behind its laws."""
    assert "rates of products and attention on a100-80gb;" in said(make_job(make_cluster(2)), "Assumed")


def test_links_are_measured_or_assumed() -> None:
    """As the cluster says; one host has none."""
    for measured, origin in ((True, "Measured"), (False, "Assumed")):
        assert "links between hosts" in said(job("h100-80gb", links_measured=measured), origin)
    alone: ClusterSpec = make_cluster(1)
    assert not any("links" in line for line in provenance(make_job(alone)))


def test_constants_have_origins_of_their_own() -> None:
    """Of the shipped stack: kernels and NCCL were measured, launches lie between other stacks, the rest is assumed."""
    given = replace(job("h100-80gb"), stack=read_stack())
    assert "intra_node" in said(given, "Measured")
    assert "host_kernel_s" in said(given, "Interpolated")
    assert "the other constants of the stack megatron-core" in said(given, "Assumed")
    with pytest.raises(ValueError, match="origins"):
        replace(given.stack, origins={"intra_nod": "measured"})


def test_a_fitted_stack_is_measured() -> None:
    """One without origins is assumed."""
    given = job("h100-80gb")
    assert "constants of the stack" in said(given, "Assumed")
    fitted = replace(given, stack=replace(given.stack, name="mine", fitted={"constants": "fitted"}))
    assert "constants of the stack mine" in said(fitted, "Measured")
