"""Options of ``import links``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pipette_opt.options.description import Option

Fill = Literal["exclude", "worst", "median", "switch"]
Repeated = Literal["worst", "mean"]
Direction = Literal["measured", "average", "slower"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """Treatment of failed and repeated measurements, and facts that the logs lack."""

    fill: Annotated[
        Fill,
        Option(
            help="Rate of a pair of hosts whose measurement failed: exclude (the link is not used), worst or median "
            "(of all pairs with as many flows), or switch (the worst pair at the same distance in the switch tree).",
            words=("exclude", "worst", "median", "switch"),
        ),
    ] = "exclude"
    repeated: Annotated[
        Repeated,
        Option(help="Rate of a pair of hosts that several sources measured: worst or mean.", words=("worst", "mean")),
    ] = "worst"
    direction: Annotated[
        Direction,
        Option(
            help="measured (a rate per direction), average or slower (the same rate for both directions).",
            words=("measured", "average", "slower"),
        ),
    ] = "measured"
    short_names: Annotated[bool, Option(help="Cut host names at the first dot.")] = False
    gpu: Annotated[str | None, Option(help="GPU type, if the logs do not name it.")] = None
    gpus_per_node: Annotated[int | None, Option(help="GPUs per host, if the logs used fewer.", minimum=1)] = None
    nics_per_node: Annotated[
        int | None,
        Option(help="NICs per host, if the logs do not contain this number; by default a NIC per GPU.", minimum=1),
    ] = None
    only_gpus: Annotated[
        int | None, Option(help="Use only the logs of tests with this many GPUs per host.", minimum=1)
    ] = None
    test: Annotated[
        str,
        Option(
            help="Test of nccl-tests, if its log does not name it: sendrecv, alltoall, all_reduce, all_gather or "
            "reduce_scatter."
        ),
    ] = ""
    pair: Annotated[
        str | None,
        Option(help="Sender and receiver of ib_write_bw or osu_bw, if the log does not name them, e.g. gpu01,gpu02."),
    ] = None
    name: Annotated[str | None, Option(help="Name of the cluster.")] = None
