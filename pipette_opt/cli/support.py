"""``pipette-opt support``."""

from typing import Annotated

import typer

from pipette_opt.cli import options as opt


def support(
    model: Annotated[str, typer.Argument(help="Preset name, Hugging Face config.json, or file of Megatron arguments.")],
    gpu: Annotated[str, typer.Argument(help="GPU type; any usual name works, e.g. H100.")],
    env: opt.Env = None,
    calibration: opt.Calibration = None,
    json: opt.Json = False,
) -> None:
    """
    List which parts of a model are modelled on a GPU type, from which constants, and against which public runs.

    Example: [bold]pipette-opt support deepseek-v3 gb200[/], or [bold]pipette-opt support ./config.json h100 --json[/]
    """
    from dataclasses import asdict

    from pipette_opt.cli.output import show, show_json
    from pipette_opt.read.gpus import read_gpu_entry
    from pipette_opt.read.model import read_model
    from pipette_opt.read.scripts import script_environment
    from pipette_opt.read.stack import read_stack
    from pipette_opt.report.support import support_of, support_table

    stack = read_stack() if calibration is None else read_stack(calibration)
    found = support_of(
        model, read_model(model, environment=script_environment(env)), read_gpu_entry(gpu, "support"), stack
    )
    if json:
        show_json(asdict(found))
    else:
        show(support_table(found))
