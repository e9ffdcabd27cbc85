"""Stacks from files and back."""

from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest
import yaml

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.options.description import JobOptions, fields_of
from pipette_opt.read.stack import MAX_ERRORS, read_stack, write_stack
from pipette_opt.specs import DEFAULT_STACK, StackSpec
from pipette_opt.specs.memory_constants import MemoryConstants
from pipette_opt.specs.stack import CONSTANTS, Family, SparseRates


def test_the_shipped_stack_counts_launches_and_nccl_beside_the_neutral_one() -> None:
    """All other constants of it stand for nothing that was seen: they are those of a stack without a file."""
    shipped = read_stack("megatron-core")
    other = {name for name in CONSTANTS if getattr(shipped, name) != getattr(DEFAULT_STACK, name)}
    assert other == {"intra_node", "collective_s", "host_kernel_s", "micro_batch_s", "iteration_s"}


def test_round_trip(tmp_path: Path) -> None:
    """What is written is read."""
    memory = MemoryConstants(spread=0.03, errors=(-0.5, 0.25), twins={"0a": 0.5}, versions={"2.1": 0.1})
    stack = replace(StackSpec(), host_kernel_s=7.5e-5, name="mine", memory=memory, fitted={"constants": "kept"})
    write_stack(stack, tmp_path / "mine.yaml", "made by a test")
    assert read_stack(tmp_path / "mine.yaml") == stack


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("streaming: 1.5\n", "streaming must be a number in [1e-09, 1], got 1.5"),
        ("matmul_speed: 0\n", "matmul_speed must be a number in [1e-09, 1e+15], got 0"),
        ("matmul_sped: 0.5\n", "Did you mean matmul_speed"),
        ("host_kernel_s: -1\n", "host_kernel_s must be a number in [0, 1e+15], got -1"),
        ("micro_batch_s: .nan\n", "micro_batch_s must be a number in [0, 1e+15], got nan"),
        ("micro_batch_s: 1.0e+16\n", "micro_batch_s must be a number in [0, 1e+15], got 1e+16"),
        ("memory: 3\n", "memory must be a mapping"),
        ("memory: {activation: 0.2}\n", "memory unknown field 'activation'. Did you mean activations"),
        ("memory: {group_gib: much}\n", "memory.group_gib must be a number in [0, 10000], got 'much'"),
        ("memory: {group_gib: true}\n", "memory.group_gib must be a number in [0, 10000], got True"),
        ("memory: {logit_bytes: .inf}\n", "memory.logit_bytes must be a number in [-4, 10000], got inf"),
        ("memory: {errors: [.inf]}\n", "memory.errors[0] must be a finite number from -1e+18 to 1e+18, got inf"),
        ("memory: {errors: [null]}\n", "memory.errors[0] must be a finite number, got nothing"),
        ("memory: {errors: [1, 0]}\n", "memory: errors must be finite and ascending."),
        ("memory: {twins: {0a: 2}}\n", "memory.twins.0a must be a number in [-1.25, 1.25], got 2"),
        ("flush_s: 0.5\n", "unknown field 'flush_s'"),
        ("fitted: {num_runs: 12}\n", "fitted: constants must be fitted or kept; calibrate again."),
        ("versions: {'1.0': 0}\n", "versions.1.0 must be a number > 0, got 0"),
        (
            "origins: {kernel_s: guessed}\n",
            "origins.kernel_s must be one of assumed, interpolated, measured, got 'guessed'",
        ),
    ],
)
def test_wrong_stacks_are_refused(tmp_path: Path, text: str, said: str) -> None:
    """The message names file and field."""
    path = tmp_path / "stack.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"stack\.yaml") as caught:
        read_stack(path)
    assert said in str(caught.value)


def test_missing_constants_have_defaults(tmp_path: Path) -> None:
    """A file is one by any name."""
    path = tmp_path / "of.last.year"
    path.write_text("name: short\niteration_s: 0.5\n")
    stack = read_stack(path)
    assert (stack.iteration_s, stack.micro_batch_s) == (0.5, 0.0)


def test_long_lists_of_errors_are_thinned(tmp_path: Path) -> None:
    """The smallest and the largest stay."""
    errors = tuple(float(value) for value in range(1000))
    write_stack(replace(StackSpec(), memory=MemoryConstants(errors=errors)), tmp_path / "a.yaml")
    kept = read_stack(tmp_path / "a.yaml").memory.errors
    assert (len(kept), kept[0], kept[-1]) == (MAX_ERRORS, 0.0, 999.0)


def test_nanotron_keeps_what_its_code_keeps() -> None:
    """
    Unfused gates store a quarter to half more; logits in fp32 twice; gradients a second time in buckets.

    Hosts run ahead by about as many buffers as 1024 queued launches hold, with a pipeline and without; the step needs
    what ``Mem Alloc`` after it shows (4 bytes a parameter more than before) and what it works with.
    """
    memory = read_stack("nanotron").memory
    assert 0.2 < memory.activations < 0.5
    assert 2 < memory.logit_bytes < 6
    assert 0.5 < memory.gradient_copy_bytes < 2.5
    assert 35 < memory.pile_up_buffers < 70
    assert 35 < memory.run_ahead_buffers < 70
    assert 4 < memory.step_state_bytes < 9
    assert memory.late_buffers is not None
    assert memory.largest_job == 32
    assert len(memory.errors) > 300


def test_rates_of_sparse_attention_are_in_the_stack(tmp_path: Path) -> None:
    """The shipped file says the defaults; other rates are kept in a file, and limits hold."""
    text = shipped_path("data", "stacks", "megatron-core.yaml").read_text(encoding="utf-8")
    rates = yaml.safe_load(text)["sparse_attention"]
    assert SparseRates(**{**rates, "query_passes": tuple(rates["query_passes"])}) == SparseRates()
    assert set(rates) == {field.name for field in fields(SparseRates)}
    path = tmp_path / "a.yaml"
    stack = replace(DEFAULT_STACK, sparse_attention=SparseRates(query_passes=(3.0, 11.0), target_share=0.1))
    write_stack(stack, path)
    assert read_stack(path) == stack
    path.write_text("sparse_attention: {score_share: 1.5}")
    with pytest.raises(InputError, match=r"sparse_attention.score_share must be a number in \[1e-09, 1\], got 1.5"):
        read_stack(path)


def test_only_nanotron_has_thresholds_of_late_buffers(tmp_path: Path) -> None:
    """They are kept in files."""
    late = read_stack("nanotron").memory.late_buffers
    for name in ("megatron-core", "torchtitan", "deepspeed"):
        assert read_stack(name).memory.late_buffers is None
        assert read_stack(name).proxy_threads == 0
    path = tmp_path / "a.yaml"
    for memory in (MemoryConstants(step_bytes=2.0), MemoryConstants(step_bytes=2.0, late_buffers=late)):
        write_stack(replace(DEFAULT_STACK, memory=memory), path)
        assert read_stack(path).memory == memory
    path.write_text("memory: {step_bytes: 2.0}")
    assert read_stack(path).memory.late_buffers is None
    path.write_text("memory: {late_buffers: {pile_layers: 4}}")
    with pytest.raises(InputError, match=r"memory.late_buffers.busy_multiply_adds is missing"):
        read_stack(path)


@pytest.mark.parametrize("name", ["torchtitan", "deepspeed", "internevo"])
def test_what_was_not_measured_says_assumed(name: str) -> None:
    """Neither errors nor a largest job, wide bounds, and the word."""
    stack = read_stack(name)
    assert "assumed" in stack.source
    assert stack.origins["memory"] == "assumed"
    assert not stack.memory.errors
    assert stack.memory.largest_job == 0
    assert stack.memory.spread > 2 * MemoryConstants().spread


def test_unknown_names_are_refused() -> None:
    """With what there is."""
    with pytest.raises(
        InputError,
        match=r"neither a .yaml file nor shipped.*Shipped: deepspeed, internevo, megatron-core, megatron-core-tuned,",
    ):
        read_stack("megatron")


def test_names_of_software_are_the_shipped_stacks() -> None:
    """Each name of ``--software`` is a file, and each file is named."""
    text = fields_of(JobOptions)["software"].option.help
    words = [path.stem for path in shipped_path("data", "stacks").glob("*.yaml")]
    assert all(word in text for word in words)
    assert {read_stack(name).family for name in words} == set(get_args(Family))
