"""``pipette-opt init``, which writes a commented cluster.yaml."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_NODES = 16
"""Number of hosts in the file without ``--nodes`` and ``--hosts``. Chosen: as in the README's example."""


def init(
    out: Annotated[Path, typer.Option("--out", "-o", help="Cluster file to write; - is standard output.")] = Path(
        "cluster.yaml"
    ),
    nodes: Annotated[int | None, typer.Option(help="Number of hosts; 16 by default.", min=1)] = None,
    hosts: Annotated[
        str | None, typer.Option(help="Names of the hosts, e.g. gpu\\[01-16]; by default node01, node02, ...")
    ] = None,
    gpu: Annotated[str, typer.Option(help="GPU type; `pipette-opt gpus` lists all types.")] = "h100",
    nics: Annotated[
        str | None,
        typer.Option(help="NICs of a host x Gbit/s of each, e.g. 8x400; by default those usual for the GPU type."),
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="GPUs per host; by default as usual for the GPU type.", min=1)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """
    Write a commented cluster.yaml, to edit or to use unchanged.

    Example: [bold]pipette-opt init --hosts "gpu[01-16]" --gpu h100 --nics 8x400 -o cluster.yaml[/]
    """
    from pipette_opt.base.errors import InputError
    from pipette_opt.base.files import is_stdout, write_atomically
    from pipette_opt.cli.output import check_place, say, say_written
    from pipette_opt.read.gpus import note_on_gpu, read_gpu_entry
    from pipette_opt.read.hosts import expand_hosts
    from pipette_opt.read.nominal import cluster_template

    check_place(out)
    if not is_stdout(out) and out.exists() and not force:
        raise InputError(str(out), "exists already; give another file name with -o, or --force to overwrite the file.")
    if hosts is not None:
        names = expand_hosts(hosts, "--hosts")
        if nodes not in (None, len(names)):
            raise InputError("--nodes", f"is {nodes}, but --hosts names {len(names)} hosts; leave --nodes out.")
    wanted = hosts if hosts is not None else str(nodes or DEFAULT_NODES)
    write_atomically(out, cluster_template(nodes=wanted, gpu=gpu, nics=nics, gpus_per_node=gpus_per_node))
    note = note_on_gpu(gpu, read_gpu_entry(gpu))
    if note is not None:
        say(note)
    say_written(out, "cluster")
