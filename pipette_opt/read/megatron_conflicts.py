"""
Options of a Megatron-LM launch that exclude or need each other, by Megatron's own checks.

Each check is a row of ``data/megatron_conflicts.csv``, with its file in Megatron-LM. A rule refuses only options that
all releases from 0.16.1 to :data:`LATEST` refuse. :func:`derived_options` makes the changes that Megatron makes
silently before its checks. The table's last rows, and the table of options, list launches that Megatron accepts but
that cannot be predicted.
"""

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.units import whole_number
from pipette_opt.read.megatron_layers import counts_of_pattern

RELEASE, LATEST = "core_v0.16.1 (55ac708)", "d98e8a6 (2026-08-22)"
"""Oldest and newest state of NVIDIA/Megatron-LM whose checks were compared with these rules."""

Options = Mapping[str, Any]
"""Values of options by name with underscores."""

DEFAULTS: Options = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "recompute_granularity": None,
    "recompute_modules": ("core_attn",),
    "moe_token_dispatcher_type": "allgather",
    "moe_flex_dispatcher_backend": "deepep",
    "optimizer": "adam",
    "transformer_impl": "transformer_engine",
    "gradient_accumulation_fusion": True,
    "cuda_graph_impl": "none",
    "position_embedding_type": "learned_absolute",
    "main_grads_dtype": "fp32",
    "cp_comm_type": ("p2p",),
}
"""Megatron's defaults of options that rules use; other absent options count as absent or false."""


class Term(NamedTuple):
    """
    Condition on options, such as ``optimizer is not adam``, ``no num_experts``, or ``fp8_format given``.

    Parameters
    ----------
    names
        Options, any of which decides.
    test
        ``given``, ``is`` (one of ``words``), ``above`` (a number), or empty: the value is true.
    words
        Values that ``test`` compares with.
    negated
        Whether the test must fail.
    """

    names: tuple[str, ...]
    test: str
    words: tuple[str, ...]
    negated: bool

    def holds(self, options: Options) -> bool:
        """Return whether the options meet the condition."""
        return any(self._passes(options, name) for name in self.names) != self.negated

    def _passes(self, options: Options, name: str) -> bool:
        value = COMPUTED[name](options) if name in COMPUTED else options.get(name)
        if self.test == "given":
            return name in options
        if self.test == "is":
            return any(str(each) in self.words for each in (value if isinstance(value, list | tuple) else [value]))
        return float(value or 0) > float(self.words[0]) if self.test == "above" else bool(value)


_TERM = re.compile(r"(no )?(\w+(?: or \w+)*)(?: (not given|given|is not|is|above)(?: (.+))?)?")


def _term(text: str) -> Term:
    """Return the condition that a text of the table describes."""
    match = _TERM.fullmatch(text)
    assert match is not None, text
    no, names, test, words = match.groups(default="")
    negated = bool(no) or "not" in test.split()
    return Term(tuple(names.split(" or ")), test.replace("not", "").strip(), tuple(words.split()), negated)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronRule:
    """
    Check of Megatron-LM on the options of a launch.

    Parameters
    ----------
    when
        Conditions that together break the rule.
    problem
        Error text, with names of options in braces.
    concerns
        ``launch``, or ``model`` for checks of the model alone. ``price``: Megatron accepts the launch, but it cannot
        be predicted.
    source
        File and function of the check in Megatron-LM; of a launch without a price, the reason.
    """

    when: tuple[Term, ...]
    problem: str
    concerns: str
    source: str

    def is_broken(self, options: Options) -> bool:
        """Return whether the effective options break the rule."""
        return all(term.holds(options) for term in self.when)


@cache
def megatron_rules() -> tuple[MegatronRule, ...]:
    """Return the rules of ``data/megatron_conflicts.csv``, in the order in which they are checked."""
    with shipped_path("data", "megatron_conflicts.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple(MegatronRule(when=tuple(map(_term, row.pop("when").split("; "))), **row) for row in rows)


def check_conflicts(given: Options, where: str, *, of_model: bool = False) -> None:
    """
    Raise ``InputError`` for the first rule that the options break; launches without a price come last.

    With ``of_model``, only rules on the model are checked.
    """
    options = {**DEFAULTS, **derived_options(given)}
    for rule in megatron_rules():
        if (rule.concerns == "model" or not of_model) and rule.is_broken(options):
            raise InputError(where, rule.problem.format_map(_Words(options)))


def derived_options(given: Options) -> dict[str, Any]:
    """
    Return the options with the changes that Megatron's ``validate_args`` makes silently or with a warning.

    ``--recompute-activations`` always means selective recomputation. Without tensor parallelism there is no sequence
    parallelism. Megatron-FSDP implies the distributed optimizer. 0 experts mean a dense model. A hybrid pattern gives
    the numbers of layers and of prediction depths.
    """
    options = dict(given)
    if options.get("recompute_activations"):
        options["recompute_granularity"] = "selective"
    if options.get("tensor_model_parallel_size", 1) == 1:
        options.pop("sequence_parallel", None)
    if options.get("use_megatron_fsdp"):
        options["use_distributed_optimizer"] = True
    if options.get("use_rotary_position_embeddings"):
        options["position_embedding_type"] = "rope"
    if options.get("no_gradient_accumulation_fusion"):
        options["gradient_accumulation_fusion"] = False
    if not options.get("num_experts"):
        options.pop("num_experts", None)
    return options | counts_of_pattern(given)


class _Words(dict[str, Any]):
    """Values of options for error texts; lists become words, missing options ``none``."""

    def __missing__(self, name: str) -> str:
        return "none"

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _wrong_levels(options: Options) -> bool:
    """
    Return whether the sizes of hierarchical context parallelism are not numbers, have another product than its size,
    or are not the two of ``a2a+p2p``.
    """
    sizes = options.get("hierarchical_context_parallel_sizes")
    if sizes is None:
        return False
    numbers = all(whole_number(str(size)) is not None for size in sizes)
    two = "a2a+p2p" not in options.get("cp_comm_type", ()) or len(sizes) == 2
    return not numbers or not two or prod(map(int, sizes)) != options["context_parallel_size"]


def _capacity(options: Options) -> bool:
    """Return whether experts have a capacity factor that is a number and not negative."""
    try:
        return float(options.get("moe_expert_capacity_factor", -1)) >= 0
    except ValueError:
        return False


def _per_layer_graphs(options: Options) -> bool:
    """Return whether CUDA graphs hold layers or parts of them, not a whole iteration."""
    is_on = options.get("cuda_graph_impl") in ("local", "transformer_engine")
    is_on |= bool(options.get("enable_cuda_graph") or options.get("external_cuda_graph"))
    return is_on and "full_iteration" not in _graphed(options)


def _whole_layer_graphs(options: Options) -> bool:
    """Return whether CUDA graphs hold whole layers."""
    return _per_layer_graphs(options) and set(_graphed(options)) <= {"full"}


def _graphed(options: Options) -> tuple[str, ...]:
    """Return the parts of layers that CUDA graphs hold; empty for whole layers."""
    return tuple(word for name in ("cuda_graph_modules", "cuda_graph_scope") for word in options.get(name) or ())


COMPUTED: Mapping[str, Callable[[Options], Any]] = {
    "wrong_context_levels": _wrong_levels,
    "expert_capacity": _capacity,
    "per_layer_graphs": _per_layer_graphs,
    "whole_layer_graphs": _whole_layer_graphs,
}
"""Names in conditions that are no options, and the function that computes each from the options."""
