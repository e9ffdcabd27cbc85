"""``pipette-opt export``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt
from pipette_opt.export.formats import format_names

SLURM, PODS = "Slurm only", "Kubernetes only"
"""Headings of Slurm's and Kubernetes' options in the help."""


def export(
    plan: Annotated[Path, typer.Argument(help="Plan file to export.")],
    target: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help=f"Format: {', '.join(format_names())}.",
        ),
    ] = "rankmap-json",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write the files to; without it they are printed.")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="Container image. Required for kubernetes and pytorchjob; optional for slurm, which runs it "
            "with pyxis."
        ),
    ] = None,
    job_name: Annotated[
        str, typer.Option(help="Name of the job, for slurm, kubernetes and pytorchjob only.")
    ] = "pretrain",
    account: Annotated[str | None, typer.Option(help="Slurm account.", rich_help_panel=SLURM)] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm partition.", rich_help_panel=SLURM)] = None,
    time: Annotated[
        str | None, typer.Option(help="Time limit of the Slurm job, e.g. 4:00:00.", rich_help_panel=SLURM)
    ] = None,
    segment: Annotated[
        int | None,
        typer.Option(
            help="Number of hosts that must be in the same block (Slurm's topology/block).", rich_help_panel=SLURM
        ),
    ] = None,
    container_mounts: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder to mount into the container of --image, as SOURCE:TARGET; repeatable.", rich_help_panel=SLURM
        ),
    ] = None,
    rdma_resource: Annotated[
        list[str] | None,
        typer.Option(
            help="RDMA devices of each pod as NAME=COUNT, e.g. rdma/hca_shared_devices_a=8; repeatable. Also "
            "adds IPC_LOCK.",
            rich_help_panel=PODS,
        ),
    ] = None,
    host_network: Annotated[
        bool, typer.Option("--host-network", help="Pods use the network of their host.", rich_help_panel=PODS)
    ] = False,
    host_ipc: Annotated[
        bool, typer.Option("--host-ipc", help="Pods use the IPC namespace of their host.", rich_help_panel=PODS)
    ] = False,
    shm_size: Annotated[
        str | None, typer.Option(help="Size limit of /dev/shm in a pod, e.g. 64Gi.", rich_help_panel=PODS)
    ] = None,
    diff: Annotated[
        str | None,
        typer.Option(help="Your launch script: print the options to change, add and drop instead of writing files."),
    ] = None,
    env: opt.Env = None,
    cluster: Annotated[
        Path | None, typer.Option(help="Path of the plan's cluster file, if the file was moved.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="With -o: replace files in the folder that export did not write, or that were changed."
        ),
    ] = False,
    json: opt.Json = False,
) -> None:
    """
    Write the files that launch a plan.

    The export is refused if the format cannot express the whole plan or if an option has no effect on the format. It is
    also refused if the plan's cluster file, link matrices or profile have changed since the plan was made. Files in the
    folder that export did not write, or that were changed since, are kept unless --force is given.

    Example: [bold]pipette-opt export plan.json --format slurm --partition gpu -o launch/[/]

    Example: [bold]pipette-opt export plan.json --format megatron --diff train.sh[/]
    """
    from dataclasses import asdict

    from pipette_opt.base.files import is_stdout
    from pipette_opt.cli.output import answer, console, say, show_json
    from pipette_opt.export.script_changes import changes_text
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.export import export as library_export

    found = for_commands(library_export)(
        plan,
        target,
        out=None if json or is_stdout(out) else out,
        force=force,
        diff=diff,
        env=env,
        cluster=cluster,
        image=image,
        job_name=job_name,
        account=account,
        partition=partition,
        time=time,
        segment=segment,
        container_mounts=container_mounts,
        rdma_resource=rdma_resource,
        host_network=host_network,
        host_ipc=host_ipc,
        shm_size=shm_size,
    )
    for note in found.notes:
        say(note)
    if diff is not None:
        if json:
            show_json([asdict(change) for change in found.changes])
        else:
            answer("\n".join(changes_text(found.changes, found.script)))
    elif json:
        show_json(found.files)
    elif out is None or is_stdout(out):
        for name, text in found.files.items():
            if len(found.files) > 1:
                say(f"# {name}")
            console().out(text, end="" if text.endswith("\n") else "\n")
    else:
        for name in found.files:
            say(f"wrote {out / name}")
