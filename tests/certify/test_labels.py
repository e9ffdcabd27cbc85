"""Configurations as people type them."""

import numpy as np
import pytest
from factories import LLAMA_8B, make_job, make_random_cluster
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.candidates import SearchSpace, enumerate_with_reasons
from pipette_opt.certify.labels import pinned, separate

SPACE = SearchSpace(micro_batch_size=(1, 2))
DEGREES = SearchSpace(tensor_parallel=(8,), pipeline_parallel=(4,))


def test_switches_may_be_said_as_people_do() -> None:
    """On and off, yes and no."""
    assert pinned(SPACE, "sp=yes,dopt=no") == pinned(SPACE, "sp=on,dopt=off")


def test_the_pins_are_read() -> None:
    """Every name and word; what is unknown is refused with what there is."""
    found = pinned(SPACE, "tp=8, pp=2,dp=2,vpp=1,mbs=1,recompute=full,sp=on,dopt=off,overlap=on,gather=off")
    assert (found.tensor_parallel, found.pipeline_parallel, found.recompute) == ((8,), (2,), ("full",))
    assert (found.sequence_parallel, found.use_distributed_optimizer) == ((True,), (False,))
    assert (found.overlap_grad_reduce, found.overlap_param_gather) == (True, False)
    for text, said in (
        ("tp=x", "tp=x: must be a whole number"),
        ("pq=1", "Known: tp, pp"),
        ("recompute=some", "none, selective, block, full, or modules"),
    ):
        with pytest.raises(InputError, match=said):
            pinned(SPACE, text)


def test_labels_are_read_as_tables_have_them() -> None:
    """Each word of a label, and layers in runs."""
    found = pinned(SPACE, "tp8 pp3 dp2 mbs1 cp2 ulysses2 vpp2 sp block3 dopt overlap layers12x2,8")
    assert (found.tensor_parallel, found.context_parallel, found.virtual_pipeline) == ((8,), (2,), (2,))
    assert found.context_a2a == (2,)
    assert (found.sequence_parallel, found.use_distributed_optimizer, found.recompute) == ((True,), (True,), ("block",))
    assert (found.overlap_grad_reduce, found.overlap_param_gather) == (True, False)
    assert found.layers_per_stage == ((12, 12, 8),)
    assert pinned(SPACE, "tp2 core_attn+layernorm").recompute == ("core_attn+layernorm",)
    assert pinned(SPACE, "tp2 overlap+gather").overlap_param_gather is True
    with pytest.raises(InputError, match=r"Known: tp, pp"):
        pinned(SPACE, "tp8 fast")


TYPED = table(__file__, "TYPED")
"""Twenty-four ways to say tensor 8, pipeline 4."""


@pytest.mark.parametrize("text", TYPED)
def test_degrees_as_people_type_them(text: str) -> None:
    """All mean the same."""
    assert pinned(SearchSpace(), text) == DEGREES


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("tp8 no recompute", "recompute", (None,)),
        ("tp8 without recomputation", "recompute", (None,)),
        ("tp8 recompute none", "recompute", (None,)),
        ("tp8 recompute=full", "recompute", ("full",)),
        ("tp8 recompute full", "recompute", ("full",)),
        ("tp8 full block2", "recompute", ("block",)),
        ("tp8 full uniform2", "recompute", ("full",)),
        ("tp8 zero3", "data_parallel_sharding_strategy", ("optim_grads_params",)),
        ("tp8 zero=2", "data_parallel_sharding_strategy", ("optim_grads",)),
        ("tp8 zero3 groups2+optim", "num_distributed_optimizer_instances", (2,)),
        ("tp8 vpp5 no-overlap-p2p", "overlap_p2p_communication", False),
        ("tp8 layers=8,9,10,11x4,9", "layers_per_stage", ((8, 9, 10, 11, 11, 11, 11, 9),)),
        ("tp8 layers8;9", "layers_per_stage", ((8, 9),)),
        ("tp8 --micro-batch-size 2", "micro_batch_size", (2,)),
        ("tp8 mbs2", "micro_batch_size", (2,)),
        ("tp8 ep4 etp2", "expert_tensor_parallel", (2,)),
        ("tp8 --sequence-parallel", "sequence_parallel", (True,)),
        ("tp8 dopt=off", "use_distributed_optimizer", (False,)),
        ("tp8 gpus=64", "num_gpus", 64),
    ],
)
def test_other_choices_as_people_type_them(text: str, field: str, value: object) -> None:
    """Recomputation, sharing, layers, and the options of Megatron."""
    assert getattr(pinned(SearchSpace(), text), field) == value


def test_a_layout_pins_its_chunks_and_stages() -> None:
    """Megatron's text of a layout, as a label has it."""
    found = pinned(SearchSpace(), "tp2 pp2 layout Ettt|tt|tt|tL")
    assert (found.more_layouts, found.virtual_pipeline) == (("Ettt|tt|tt|tL",), (2,))
    assert found.layers_per_stage == ((5, 3),)
    with pytest.raises(InputError, match="needs the number of stages"):
        pinned(SearchSpace(), "tp2 layout Ett|tL")


def test_every_label_of_a_table_is_read() -> None:
    """A label pins a space that has its configuration, and no other than one that it does not tell apart."""
    job = make_job(make_random_cluster(np.random.default_rng(1), 2), LLAMA_8B, 32, 4096)
    found = enumerate_with_reasons(job, SearchSpace(micro_batch_size=(1, 2))).candidates
    picked = np.random.default_rng(2).choice(len(found), size=25, replace=False)
    for index in picked.tolist():
        label = found[index].label()
        again = enumerate_with_reasons(job, pinned(SearchSpace(), f"{label} gpus={found[index].world_size}")).candidates
        assert label in {config.label() for config in again}, label
        for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size", "num_chunks"):
            assert {getattr(config, name) for config in again} >= {getattr(found[index], name)}


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["tp8", "pp4"], ["tp8 pp4"]),
        (["tp=8", "pp=4"], ["tp=8 pp=4"]),
        (["tp8 pp4", "tp4 pp8"], ["tp8 pp4", "tp4 pp8"]),
        (["tp8", "tp4"], ["tp8", "tp4"]),
        (["tp8", "pp4", "tp4", "pp8"], ["tp8 pp4", "tp4 pp8"]),
        (["tp=8,pp=4", "tp4"], ["tp=8,pp=4", "tp4"]),
    ],
)
def test_several_arguments_are_one_configuration_or_more(words: list[str], asked: list[str]) -> None:
    """Up to a name that comes again; an argument with several names is a configuration."""
    assert separate(words) == asked


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must name a degree"),
        ("tq8", "Known: tp, pp"),
        ("tp8 pipelin=4", "Did you mean pipeline"),
        ("tp", "tp needs a value"),
        ("tp8 tp4", "tp is given twice"),
        ("tp0", "whole number >= 1"),
        ("zero7", "must be 0 to 3"),
        ("tp8 xyzzy4", "is not known"),
        ("tp8 !", "is not known"),
    ],
)
def test_half_right_labels(text: str, said: str) -> None:
    """One line, with the nearest that is known."""
    with pytest.raises(InputError, match=said):
        pinned(SearchSpace(), text)


@pytest.mark.parametrize("text", ["tp8 " * 4000, "tp" * 8000, "layers" + "8," * 8000, "a-" * 8000, "=" * 16000])
def test_a_long_text_takes_no_time(text: str) -> None:
    """Sixteen thousand characters are refused at once, in a short line."""
    with pytest.raises(InputError) as found:
        pinned(SearchSpace(), text + " xyzzy")
    assert len(str(found.value)) < 1000
