"""Launch options that the plan does not contain: containers, queues and devices of the user's cluster."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.typed import Size, typed
from pipette_opt.base.units import whole_number

DEFAULT_JOB_NAME = "pretrain"

JOB_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
"""
Job names that both Slurm and Kubernetes accept.

Kubernetes allows a DNS label of at most 63 characters (its documentation, "Object Names and IDs"); names of pods add
up to 23 characters to the name of the job.
"""

WORD = re.compile(r"[A-Za-z0-9_./:@#%+,=-]+")
"""Values that are safe without quotes in Slurm directives and YAML: no blanks, quotes or shell characters."""

RESOURCE = re.compile(r"[a-z0-9.-]+/[A-Za-z0-9._-]+")
"""Name of a Kubernetes extended resource with its domain (documentation, "Extended resources")."""

QUANTITY = re.compile(r"[1-9][0-9]*(Mi|Gi|Ti)")
"""Kubernetes quantities in powers of two, such as ``64Gi``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """
    Options of ``export``; each field has the name of its option.

    Parameters
    ----------
    image
        Container image, required for Kubernetes; Slurm runs it with pyxis.
    account, partition, time
        Slurm directives. Without a value the script contains a commented line instead.
    segment
        Number of hosts per Slurm segment (topology/block). ``None``: the number of hosts that the plan uses in each
        NVLink domain.
    container_mounts
        Folders that the container of a Slurm job sees, each as ``SOURCE:TARGET``.
    rdma_resource
        Devices that a pod requests: name of the extended resource, such as ``rdma/hca_shared_devices_a``, and number.
    host_network, host_ipc
        Whether pods use the network and the shared memory of their host.
    shm_size
        Limit of ``/dev/shm`` in a pod, such as ``64Gi``; ``None`` for half of the host's memory.
    """

    image: str | None = None
    job_name: str = DEFAULT_JOB_NAME
    account: str | None = None
    partition: str | None = None
    time: str | None = None
    segment: int | None = None
    container_mounts: tuple[str, ...] = ()
    rdma_resource: tuple[tuple[str, int], ...] = ()
    host_network: bool = False
    host_ipc: bool = False
    shm_size: str | None = None

    def __post_init__(self) -> None:
        """Raise ``InputError`` for a value that a launcher would misread."""
        if not JOB_NAME.fullmatch(self.job_name):
            raise InputError(
                "--job-name",
                "must be up to 40 lower-case letters, digits and hyphens, beginning with a letter, got "
                f"{self.job_name!r}.",
            )
        for name in ("image", "account", "partition", "time"):
            _check_word(name, getattr(self, name))
        for mount in self.container_mounts:
            _check_word("container_mounts", mount)
            if ":" not in mount or "," in mount:
                raise InputError("--container-mounts", f"must be SOURCE:TARGET without commas, got {mount!r}.")
        if self.segment is not None:
            typed(Size, self.segment, "--segment")
        if self.shm_size is not None and not QUANTITY.fullmatch(self.shm_size):
            raise InputError("--shm-size", f"must be a number with Mi, Gi or Ti, e.g. 64Gi, got {self.shm_size!r}.")
        for resource, count in self.rdma_resource:
            if not RESOURCE.fullmatch(resource) or count < 1:
                raise InputError(
                    "--rdma-resource",
                    f"must be DOMAIN/NAME=COUNT, got {resource}={count}; `kubectl describe node` lists names.",
                )


def option_of(field: str) -> str:
    """Return the command-line option of a field."""
    return "--" + field.replace("_", "-")


def parse_resource(text: str) -> tuple[str, int]:
    """Return name and number of ``NAME=COUNT``."""
    name, _, count = text.partition("=")
    number = whole_number(count)
    if number is None:
        raise InputError("--rdma-resource", f"must be DOMAIN/NAME=COUNT, got {shown(text)}.")
    return name, number


def refuse_unused(target: str, options: LaunchOptions, takes: Mapping[str, tuple[str, ...]]) -> None:
    """
    Raise ``InputError`` for an option that has no effect on the format.

    Parameters
    ----------
    takes
        Fields that have an effect, by format.
    """
    for field in fields(options):
        if getattr(options, field.name) != field.default and field.name not in takes[target]:
            others = ", ".join(name for name, taken in takes.items() if field.name in taken)
            raise InputError(option_of(field.name), f"has no effect with --format {target}; it applies to {others}.")


def _check_word(field: str, value: str | None) -> None:
    if value is not None and not WORD.fullmatch(value):
        raise InputError(option_of(field), f"must not contain blanks, quotes or shell characters, got {value!r}.")
