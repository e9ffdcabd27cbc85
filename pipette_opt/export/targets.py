"""Table of all export formats."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pipette_opt.base.errors import InputError
from pipette_opt.export.checks import check_equal_microbatches, check_map
from pipette_opt.export.deepspeed import export_deepspeed
from pipette_opt.export.kubernetes import export_jobset, export_pytorchjob
from pipette_opt.export.launch_options import LaunchOptions, refuse_unused
from pipette_opt.export.machines import on_machines
from pipette_opt.export.megatron import export_megatron
from pipette_opt.export.mpi import export_mpi
from pipette_opt.export.nemo import export_nemo
from pipette_opt.export.rankmap import export_rankmap_csv, export_rankmap_json
from pipette_opt.export.slurm import export_slurm
from pipette_opt.export.torchrun import export_torchrun
from pipette_opt.export.torchtitan import export_torchtitan
from pipette_opt.plans.plan import Plan


class Target(NamedTuple):
    """
    A format of ``export``.

    Parameters
    ----------
    write
        Function that returns the texts of the files, by file name, from a plan and, if ``takes`` is not empty, options.
        It raises ``InputError`` if the format cannot express the plan.
    maps
        Rank maps that the format can start, in words.
    takes
        Fields of ``LaunchOptions`` that have an effect.
    any_count
        Whether hosts may have different numbers of ranks.
    is_map
        Whether the files only say which GPU has which rank, whatever runs there.
    """

    write: Callable[..., dict[str, str]]
    files: str
    maps: str
    takes: tuple[str, ...] = ()
    needs_image: bool = False
    any_count: bool = False
    is_map: bool = False


ANY = "any"
PER_HOST = "consecutive ranks on each host, GPUs in any order"
ELSEWHERE = "any; started by slurm, mpi or torchrun"

OF_SLURM = ("job_name", "account", "partition", "time", "segment", "image", "container_mounts")
OF_PODS = ("job_name", "image", "rdma_resource", "host_network", "host_ipc", "shm_size")

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "rankmap-json": Target(export_rankmap_json, "rankmap.json", ANY, any_count=True, is_map=True),
        "rankmap-csv": Target(export_rankmap_csv, "rankmap.csv", ANY, any_count=True, is_map=True),
        "megatron": Target(export_megatron, "megatron_args.sh", ELSEWHERE, any_count=True),
        "nemo": Target(export_nemo, "nemo_args.sh, overrides.yaml", ELSEWHERE, any_count=True),
        "torchrun": Target(export_torchrun, "launch.sh, nodes.txt", PER_HOST),
        "slurm": Target(export_slurm, "job.sbatch, hostfile.txt, task.sh, megatron_args.sh", ANY, OF_SLURM),
        "mpi": Target(
            export_mpi, "launch.sh, hostfile.txt, rankfile.txt, task.sh, megatron_args.sh", ANY, any_count=True
        ),
        "deepspeed": Target(
            export_deepspeed,
            "launch.sh, hostfile.txt, ds_config.json, deepspeed_env",
            "consecutive ranks on each host, GPUs ascending",
        ),
        "torchtitan": Target(export_torchtitan, "torchtitan.toml, launch.sh, nodes.txt", PER_HOST),
        "kubernetes": Target(export_jobset, "jobset.yaml", PER_HOST, OF_PODS, needs_image=True),
        "pytorchjob": Target(export_pytorchjob, "pytorchjob.yaml", PER_HOST, OF_PODS, needs_image=True),
    }
)


NO_OPTIONS = LaunchOptions()
"""Default options, for formats that have none."""


def export(plan: Plan, target: str, options: LaunchOptions = NO_OPTIONS) -> dict[str, str]:
    """
    Return the files that launch a plan, by file name; all files belong in one folder.

    Raise ``InputError`` if the format is unknown or cannot express the plan, if an option has no effect, or if two
    ranks share a GPU.
    """
    if target not in TARGETS:
        raise InputError("--format", f"must be one of {', '.join(TARGETS)}, got {target!r}.")
    chosen = TARGETS[target]
    refuse_unused(target, options, {name: entry.takes for name, entry in TARGETS.items()})
    if chosen.needs_image and options.image is None:
        raise InputError("--image", f"is required with --format {target}: the name of a container image.")
    plan = on_machines(target, plan, [name for name, entry in TARGETS.items() if entry.any_count])
    check_map(plan)
    if not chosen.is_map:
        check_equal_microbatches(target, plan)
    return chosen.write(plan, options) if chosen.takes else chosen.write(plan)
