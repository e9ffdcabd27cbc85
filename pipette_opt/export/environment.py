"""Environment variables that a launch sets, each with a comment that gives the reason."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pipette_opt.export.shell import comment
from pipette_opt.plans.plan import Plan, rank_rows

BLACKWELL = 100
"""
Compute capability of Blackwell, times ten; from here on Megatron-LM accepts several CUDA connections (0.13 to 0.19).
"""

SHARDED, REDUCED = ("allgather", "reducescatter"), ("allreduce",)
"""NCCL's names of the collectives on gradients and weights: with a distributed optimizer, and without."""

ALGORITHMS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "ring": dict.fromkeys((*SHARDED, *REDUCED), "ring,nvls"),
        "tree": {"allreduce": "tree,nvlstree"},
    }
)
"""
Value of ``NCCL_ALGO`` for each collective, by the algorithm that the plan's times assume.

NCCL accepts a value per collective since 2.24 (user guide, "NCCL_ALGO"). ``nvls`` between hosts needs a switch that
reduces; other switches limit it to a host, where tensor parallelism uses it. A collective that is not listed keeps
NCCL's choice.
"""


class Setting(NamedTuple):
    """
    An environment variable.

    Parameters
    ----------
    yields
        Whether a value that the environment already has is kept.
    """

    name: str
    value: str
    why: str
    yields: bool = False


CUDA_ORDER = Setting(
    "CUDA_DEVICE_ORDER", "PCI_BUS_ID", "GPUs are numbered as nvidia-smi does; CUDA alone puts the fastest first."
)


def megatron_settings(plan: Plan) -> list[Setting]:
    """Return the variables that Megatron-LM and Megatron-Bridge need."""
    return [*connections(plan), CUDA_ORDER, *nccl_settings(plan)]


def connections(plan: Plan) -> list[Setting]:
    """
    Return the setting of ``CUDA_DEVICE_MAX_CONNECTIONS``; empty for CUDA's default of 8.

    Megatron-LM stops unless the value is 1 with tensor or context parallelism on a GPU before Blackwell
    (``validate_args`` in ``training/arguments.py``). On Blackwell a single connection would serialise all
    communication; Megatron-Bridge uses 32 (``recipes/run_plugins.py`` of 0.3.1).
    """
    config = plan.config
    if config.tensor_model_parallel_size == 1 and config.context_parallel_size == 1:
        return []
    if not _all_blackwell(plan):
        why = "Megatron-LM wants 1 where tensor or context parallelism runs on GPUs before Blackwell."
        return [Setting("CUDA_DEVICE_MAX_CONNECTIONS", "1", why)]
    if config.data_parallel_size == 1 and config.pipeline_model_parallel_size == 1:
        return []
    why = "From Blackwell on: more queues than the default of 8, so that kinds of communication do not wait in one."
    return [Setting("CUDA_DEVICE_MAX_CONNECTIONS", "32", why)]


def nccl_settings(plan: Plan, sharded: Sequence[str] = SHARDED) -> list[Setting]:
    """
    Return the setting of ``NCCL_ALGO`` that the plan's times assume; empty if gradients stay inside hosts.

    Parameters
    ----------
    sharded
        NCCL's names of the collectives of a distributed optimizer.
    """
    known = ALGORITHMS.get(plan.nccl_algorithm, {})
    collectives = sharded if plan.config.sharding_stage else REDUCED
    value = ";".join(f"{name}:{known[name]}" for name in collectives if name in known)
    if not value or not reduces_between_hosts(plan):
        return []
    why = (
        f"The plan's times assume {plan.nccl_algorithm}s between hosts. Needs NCCL 2.24 or later; "
        "delete the line to let NCCL choose."
    )
    return [Setting("NCCL_ALGO", value, why, yields=True)]


def reduces_between_hosts(plan: Plan) -> bool:
    """Return whether any data-parallel group has ranks on several hosts."""
    hosts: dict[tuple[int, int], set[str]] = {}
    for row in rank_rows(plan):
        hosts.setdefault((row.tp, row.pp), set()).add(row.host)
    return any(len(found) > 1 for found in hosts.values())


def setting_lines(settings: list[Setting]) -> list[str]:
    """Return lines of bash that set the variables."""
    lines = []
    for setting in settings:
        value = f'"${{{setting.name}:-{setting.value}}}"' if setting.yields else setting.value
        lines += [comment(setting.why), f"export {setting.name}={value}"]
    return lines


def _all_blackwell(plan: Plan) -> bool:
    """Return whether every GPU type is Blackwell or newer; ``False`` if the plan does not record it."""
    recorded = plan.inputs.get("gpus")
    if not isinstance(recorded, Mapping) or not recorded:
        return False
    return all(isinstance(found, int) and found >= BLACKWELL for found in recorded.values())
