"""Options of exports that the plan does not contain: containers, queues and devices of the user's cluster."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.units import whole_number
from pipette_opt.options.description import Option
from pipette_opt.options.names import option_name
from pipette_opt.options.values import check_declared

DEFAULT_JOB_NAME = "pretrain"

LAUNCH = "The launch"
"""Heading of the options of several formats in the help."""

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


SLURM, PODS = "Slurm only", "Kubernetes only"
"""Headings of Slurm's and Kubernetes' options in the help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of ``export``; each field has the name of its option."""

    image: Annotated[
        str | None,
        Option(
            help="Container image. Required for kubernetes and pytorchjob; optional for slurm, which runs it with "
            "pyxis.",
            panel=LAUNCH,
        ),
    ] = None
    job_name: Annotated[
        str, Option(help="Name of the job, for slurm, kubernetes and pytorchjob only.", panel=LAUNCH)
    ] = DEFAULT_JOB_NAME
    account: Annotated[str | None, Option(help="Slurm account.", panel=SLURM)] = None
    partition: Annotated[str | None, Option(help="Slurm partition.", panel=SLURM)] = None
    time: Annotated[str | None, Option(help="Time limit of the Slurm job, e.g. 4:00:00.", panel=SLURM)] = None
    segment: Annotated[
        int | None,
        Option(
            help="Number of hosts that must be in the same block (Slurm's topology/block); by default the number "
            "that the plan uses in each NVLink domain.",
            panel=SLURM,
            minimum=1,
        ),
    ] = None
    container_mounts: Annotated[
        list[str] | None,
        Option(
            help="Folder to mount into the container of --image, as SOURCE:TARGET; repeatable.",
            panel=SLURM,
        ),
    ] = None
    rdma_resource: Annotated[
        list[str] | None,
        Option(
            help="RDMA devices of each pod as NAME=COUNT, e.g. rdma/hca_shared_devices_a=8; repeatable. Also adds "
            "IPC_LOCK.",
            panel=PODS,
        ),
    ] = None
    host_network: Annotated[bool, Option(help="Pods use the network of their host.", panel=PODS)] = False
    host_ipc: Annotated[bool, Option(help="Pods use the IPC namespace of their host.", panel=PODS)] = False
    shm_size: Annotated[
        str | None,
        Option(help="Size limit of /dev/shm in a pod, e.g. 64Gi; by default half of the host's memory.", panel=PODS),
    ] = None

    @property
    def devices(self) -> dict[str, int]:
        """Devices that a pod requests: number by name of the extended resource."""
        return dict(parse_resource(resource) for resource in self.rdma_resource or ())

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
        for mount in self.container_mounts or ():
            _check_word("container_mounts", mount)
            if ":" not in mount or "," in mount:
                raise InputError("--container-mounts", f"must be SOURCE:TARGET without commas, got {mount!r}.")
        check_declared(self)
        if self.shm_size is not None and not QUANTITY.fullmatch(self.shm_size):
            raise InputError("--shm-size", f"must be a number with Mi, Gi or Ti, e.g. 64Gi, got {self.shm_size!r}.")
        for resource, count in self.devices.items():
            if not RESOURCE.fullmatch(resource) or count < 1:
                raise InputError(
                    "--rdma-resource",
                    f"must be DOMAIN/NAME=COUNT, got {resource}={count}; `kubectl describe node` lists names.",
                )


def parse_resource(text: str) -> tuple[str, int]:
    """Return name and number of ``NAME=COUNT``."""
    name, _, count = text.partition("=")
    number = whole_number(count)
    if number is None:
        raise InputError("--rdma-resource", f"must be DOMAIN/NAME=COUNT, got {shown(text)}.")
    return name, number


def refuse_unused(target: str, options: ExportOptions, takes: Mapping[str, tuple[str, ...]]) -> None:
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
            raise InputError(option_name(field.name), f"has no effect with --format {target}; it applies to {others}.")


def _check_word(field: str, value: str | None) -> None:
    if value is not None and not WORD.fullmatch(value):
        raise InputError(option_name(field), f"must not contain blanks, quotes or shell characters, got {value!r}.")
