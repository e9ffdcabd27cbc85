"""Changes of a user's launch script that turn it into the plan, each with its reason."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pipette_opt.base.errors import InputError, shown
from pipette_opt.export.megatron import megatron_options
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import IterationTime, Plan
from pipette_opt.read.foreign import framework_module
from pipette_opt.read.megatron_args import MegatronArgs
from pipette_opt.read.megatron_table import field_of
from pipette_opt.read.megatron_table import megatron_options as known_options
from pipette_opt.read.model_words import Option

Action = Literal["change", "add", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """
    An option that the plan changes, adds or drops.

    Parameters
    ----------
    line
        Number of the only line in the script that names the option, from 1; ``None`` without such a line.
    before, after
        Values as in a script, empty for a flag; ``None`` if the option is not given.
    reason
        Purpose of the option; if both launches were simulated, also seconds before and after all changes.
    """

    option: str
    before: str | None
    after: str | None
    reason: str
    line: int | None = None

    @property
    def action(self) -> Action:
        """Action of the change: ``change``, ``add`` or ``drop``."""
        if self.before is None:
            return "add"
        return "drop" if self.after is None else "change"


class _Choice(NamedTuple):
    """
    A choice of the search, and the Megatron options that express it.

    Parameters
    ----------
    cause
        Part of the iteration time that the choice affects most; ``None`` if it affects memory.
    config_fields
        Fields of :class:`~pipette_opt.parallel.ParallelConfig` that hold the choice; ``None`` if they are called like
        the options. If they are equal, nothing changes, even if the script writes other options.
    """

    purpose: str
    cause: str | None
    options: tuple[str, ...]
    config_fields: tuple[str, ...] | None = None


RECOMPUTE_FIELDS = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
"""Fields of a configuration, and options, for recomputation."""

_CHOICES = (
    _Choice("GPUs that share each layer", "tensor_parallel", ("tensor_model_parallel_size",)),
    _Choice("stages of the pipeline", "bubble", ("pipeline_model_parallel_size",)),
    _Choice(
        "GPUs that share each sequence",
        "compute",
        ("context_parallel_size", "hierarchical_context_parallel_sizes"),
        ("context_parallel_size", "context_a2a_size"),
    ),
    _Choice("GPUs that share the experts", "expert_parallel", ("expert_model_parallel_size",)),
    _Choice("GPUs that share each expert", "expert_parallel", ("expert_tensor_parallel_size",)),
    _Choice("sequences at a time", "compute", ("micro_batch_size",)),
    _Choice(
        "layers of each stage",
        "bubble",
        (
            "num_layers_per_virtual_pipeline_stage",
            "num_virtual_stages_per_pipeline_rank",
            "decoder_first_pipeline_num_layers",
            "decoder_last_pipeline_num_layers",
            "account_for_embedding_in_pipeline_split",
            "account_for_loss_in_pipeline_split",
            "pipeline_model_parallel_layout",
        ),
        ("layers_per_stage", "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout"),
    ),
    _Choice("norms and dropout divided among tensor ranks", None, ("sequence_parallel",)),
    _Choice(
        "layers computed again",
        "compute",
        (*RECOMPUTE_FIELDS, "recompute_activations", "moe_layer_recompute"),
        RECOMPUTE_FIELDS,
    ),
    _Choice(
        "states divided among replicas",
        "data_parallel",
        (
            "use_distributed_optimizer",
            "use_megatron_fsdp",
            "use_torch_fsdp2",
            "data_parallel_sharding_strategy",
            "num_distributed_optimizer_instances",
            "outer_dp_sharding_strategy",
        ),
        (
            "use_distributed_optimizer",
            "zero_stage",
            "num_distributed_optimizer_instances",
            "outer_dp_sharding_strategy",
        ),
    ),
    _Choice("sent beside compute", "data_parallel", ("overlap_grad_reduce", "overlap_param_gather", "ddp_bucket_size")),
    _Choice(
        "stages send beside compute",
        "pipeline_parallel",
        ("no_overlap_p2p_communication",),
        ("overlap_p2p_communication",),
    ),
    _Choice(
        "tensor ranks send beside products",
        "tensor_parallel",
        ("tp_comm_overlap",),
        (),  # a training may say it, too
    ),
    _Choice(
        "kept in the host's memory",
        None,
        (
            "cpu_offloading_num_layers",
            "fine_grained_activation_offloading",
            "offload_modules",
            "optimizer_cpu_offload",
            "optimizer_offload_fraction",
        ),
        ("offload",),
    ),
    _Choice("order of the ranks on the hosts", None, ("use_tp_pp_dp_mapping",), ()),
)
"""Choices that are compared between a plan and a launch script, in the order of the output."""


def script_changes(
    plan: Plan,
    values: Mapping[str, Any],
    text: str = "",
    *,
    today: ParallelConfig | None = None,
    estimate: IterationTime | None = None,
) -> list[Change]:
    """
    Return the options that turn a launch into the plan: changed, added and dropped options.

    Options that the plan does not set, such as model, data and logging, are not listed.

    Parameters
    ----------
    values
        Options of the launch by name with underscores, see :func:`~pipette_opt.read.megatron_options.option_values`.
    text
        Text of the script, to find the line of each option; empty if its lines mean nothing to the user.
    today
        Configuration of the launch; without it options are compared as written.
    estimate
        Time of the launch, for the seconds in each reason.
    """
    written = {_canonical(option): " ".join(values) for option, *values in megatron_options(plan)}
    found = []
    for choice in _CHOICES:
        decided = choice.options if choice.config_fields is None else choice.config_fields
        if today and decided and all(getattr(today, name) == getattr(plan.config, name) for name in decided):
            continue
        reason = _reason(choice, estimate, plan.estimate)
        for field in choice.options:
            before, after = _words(values.get(field)), written.get(field)
            if before == after or ((before or "1") == (after or "1") and field.endswith("_size")):
                continue
            option = known_options()[field].name
            line = None if before is None else _line_of(option, text)
            found.append(Change(option=option, before=before, after=after, reason=reason, line=line))
    return found


def launch_changes(
    plan: Plan, launch: MegatronArgs, *, today: ParallelConfig | None = None, estimate: IterationTime | None = None
) -> list[Change]:
    """
    Return what turns a launch into the plan, in the options of its framework; see :func:`script_changes`.

    Settings of another framework than Megatron-LM are compared by their names, with their defaults.

    Raises
    ------
    InputError
        If the launch's framework cannot run the plan.
    """
    if not launch.module:
        return script_changes(plan, launch.written, launch.lines, today=today, estimate=estimate)
    module = framework_module(launch.module)
    values = {row.name: row.default for row in module.TABLE} | dict(launch.settings)
    found = []
    for name, value in module.settings(plan).items():
        before, after = values.get(name), value
        if _setting_text(before) != _setting_text(after):
            text = _setting_text(before) if name in launch.settings else None
            found.append(Change(option=name, before=text, after=_setting_text(after), reason=""))
    return found


def _setting_text(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else shown(str(value)).strip("'")


def decided_options(plan: Plan) -> list[Option]:
    """
    Return the Megatron-LM options that express choices of the search, in the order of the plan's arguments.

    The list is empty if Megatron-LM cannot express the plan.
    """
    decided = {field for choice in _CHOICES for field in choice.options}
    try:
        return [option for option in megatron_options(plan) if _canonical(option[0]) in decided]
    except InputError:
        return []


def _canonical(option: str) -> str:
    """Return the canonical field name of an option, which may have several names."""
    known = known_options().get(field_of(option))
    return field_of(option) if known is None else known.field


def _words(value: Any) -> str | None:
    """Return an option's value as a script writes it, empty for a flag; ``None`` if the option is not given."""
    if value is None or value is False:
        return None
    if value is True:
        return ""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _line_of(option: str, text: str) -> int | None:
    """Return the number of the only line, outside of comments, that names an option; otherwise ``None``."""
    name = re.compile(rf"(?<![\w-]){re.escape(option)}(?![\w-])")
    code = [(number, line) for number, line in enumerate(text.splitlines(), 1) if not line.lstrip().startswith("#")]
    lines = [number for number, line in code if name.search(line)]
    return lines[0] if len(lines) == 1 else None


def _reason(choice: _Choice, today: IterationTime | None, plan: IterationTime) -> str:
    """Return the purpose of a choice, and expected seconds of the part that it affects, today and in the plan."""
    if choice.cause is None or today is None:
        return choice.purpose
    before, after = (time.expected_of(time.breakdown.get(choice.cause, 0.0)) for time in (today, plan))
    if max(before, after) == 0:
        return choice.purpose
    return f"{choice.purpose}; {choice.cause.replace('_', ' ')} {before:.3g} -> {after:.3g} s"


def changes_text(changes: Sequence[Change], where: str) -> list[str]:
    """Return the changes as lines: a heading with the numbers of changes, then a line for each change."""
    if not changes:
        return [f"{where}: nothing to change; the script starts this plan's configuration already."]
    rows = [_row(change) for change in changes]
    width = max(len(edit) for edit, _ in rows)
    return [changes_head(changes, where), *(f"  {edit:<{width}}  {reason}" for edit, reason in rows)]


def changes_head(changes: Sequence[Change], where: str) -> str:
    """Return the heading: how many options of the script are changed, added and dropped."""
    counts = [(action, sum(change.action == action for change in changes)) for action in ("change", "add", "drop")]
    return f"{where}: {', '.join(f'{count} to {action}' for action, count in counts if count)}"


def changes_rows(changes: Sequence[Change], most: int) -> list[tuple[str, str]]:
    """Return edit and reason of the first ``most`` changes, and a row with the number of changes that follow."""
    left = len(changes) - most
    rows = [_row(change) for change in changes[:most]]
    return [*rows, (f"{left} more: pipette-opt export, with --launch", "")] if left > 0 else rows


def _row(change: Change) -> tuple[str, str]:
    at = "" if change.line is None else f"line {change.line}: "
    return _edit(change), f"{at}{change.reason}"


def _edit(change: Change) -> str:
    if change.action == "change":
        return f"~ {change.option} {change.before} -> {change.after}"
    sign, value = ("+", change.after) if change.action == "add" else ("-", change.before)
    return f"{sign} {change.option} {value}".rstrip()
