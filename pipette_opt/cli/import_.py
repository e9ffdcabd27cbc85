"""``pipette-opt import``: links, model, args and runs."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.base.errors import InputError, shown
from pipette_opt.cli import options as opt
from pipette_opt.options.links import LinkOptions

app = typer.Typer(
    help="Convert measurements, models and launch scripts into files that solve reads.", no_args_is_help=True
)


@app.command("links")
@opt.spread
def links(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Logs, or folders of logs, of nccl-tests, mpiGraph, osu_bw, ib_write_bw, or Pipette's JSON. "
            "Also NCCL's "
            "topology file, and output of nvidia-smi topo -m and scontrol show topology. Several sources are "
            "measurements at several times."
        ),
    ],
    *,
    asked: LinkOptions,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Cluster file to write; the link matrices go next to it.")
    ] = Path("cluster.yaml"),
    json: opt.Json = False,
) -> None:
    """
    Read link measurements into a cluster file, list the assumptions, and name the host, NIC or GPU behind slow links.

    Example: [bold]pipette-opt import links nccl_logs/ -o cluster.yaml --fill exclude[/]
    """
    from pipette_opt.base.units import counted
    from pipette_opt.cli.output import check_file, say, show_json
    from pipette_opt.read.cluster import write_cluster
    from pipette_opt.read.links import import_links

    check_file(out, "link matrices are written beside it")
    found = import_links(sources, **{"name": out.stem, **opt.given_of(asked)})
    write_cluster(found.cluster, out, comment="\n".join(found.notes))
    if json:
        show_json(
            {
                "cluster": str(out),
                "hosts": list(found.cluster.hosts),
                "notes": list(found.notes),
                "health": list(found.health.sentences),
                "slow_hosts": list(found.health.slow_hosts),
            }
        )
        return
    for note in found.notes:
        say(f"- {note}")
    say(f"{counted(found.cluster.num_nodes, 'host')} written to {out}")
    for line in found.health.sentences:
        say(line)


@app.command("model", context_settings={"ignore_unknown_options": True})  # they are Megatron's
def model(
    source: Annotated[
        list[str],
        typer.Argument(help="Preset name, config.json, a file of Megatron arguments, or the arguments themselves."),
    ],
    vocab_size: opt.VocabSize = None,
    env: opt.Env = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="YAML file to write the architecture to.")] = None,
    json: opt.Json = False,
) -> None:
    """
    Read a model and print its architecture; with -o also write it as an architecture file.

    Example: [bold]pipette-opt import model config.json -o my-model.yaml[/]
    """
    import shlex
    from dataclasses import asdict

    import yaml

    from pipette_opt.base.files import is_stdout, write_atomically
    from pipette_opt.cli.output import check_stdout, console, say, say_written, show, show_json
    from pipette_opt.read.megatron_args import model_of_arguments, written_arguments
    from pipette_opt.read.model import model_document, read_model
    from pipette_opt.read.scripts import script_environment
    from pipette_opt.report.cells import shown_tables
    from pipette_opt.report.left_out import left_out
    from pipette_opt.specs.model_gaps import not_modelled_of

    check_stdout(json, out)
    environment = script_environment(env)
    text = source[0] if len(source) == 1 else shlex.join(source)
    if len(source) > 1 and not text.startswith("--"):
        raise InputError(
            "import model", f"takes a single model, or Megatron arguments that start with --, got {text!r}."
        )
    written = written_arguments(text)
    spec, not_counted = (
        (read_model(text, vocab_size), ())
        if written is None
        else model_of_arguments(*written, environment, vocab_size=vocab_size)
    )
    gaps = (*not_counted, *not_modelled_of(spec, None))
    fields = model_document(spec)
    if json:
        not_modelled = [asdict(entry) for entry in gaps]
        counts = {"num_parameters": spec.num_parameters, "num_mtp_parameters": spec.num_mtp_parameters}
        show_json({**asdict(spec), **counts, "not_modelled": not_modelled})
    else:
        console().out(yaml.safe_dump(fields, sort_keys=False), end="")
        of_mtp = spec.num_mtp_parameters / 1e9
        more = f", and {of_mtp:.2f} billion of multi-token prediction" if of_mtp else ""
        say(f"{spec.name}: {spec.num_parameters / 1e9 - of_mtp:.2f} billion parameters{more}")
        show(*shown_tables(left_out(gaps)), beside=out)
    if out is not None and not is_stdout(out):
        write_atomically(out, yaml.safe_dump(fields, sort_keys=False))
        say_written(out)


@app.command("args")
def args(
    source: Annotated[
        str,
        typer.Argument(
            help="Launch script, file of options, or log that lists Megatron's arguments; - is standard input."
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="After --: positional arguments of the launch script.", metavar="-- ARGUMENTS"),
    ] = None,
    env: opt.Env = None,
    json: opt.Json = False,
) -> None:
    """
    Print the arguments that a launch script passes to the training program, one per line, without running the script.

    A subset of bash is evaluated; variables come only from --env and from the script's #SBATCH header.

    Example: [bold]pipette-opt import args train.sh --env NNODES=8 -- 70b[/]
    """
    import sys

    from pipette_opt.cli.output import console, say, show_json
    from pipette_opt.read.files import decoded, read_text
    from pipette_opt.read.megatron_words import read_words
    from pipette_opt.read.scripts import script_environment

    is_input = source == "-"
    where = "standard input" if is_input else source
    text = decoded(sys.stdin.buffer.read(), where) if is_input else read_text(source, keep_line_ends=True)
    found = read_words(text, where, script_environment(env), arguments or (), of_any_framework=True)
    if found.script is not None:
        found.script.require_known(where)
    if json:
        show_json(found.document())
        return
    for index, word in enumerate(found.words):
        if "\n" in word:
            raise InputError(
                where, f"argument {index + 1}, {shown(word)}, contains a line break; print the arguments with --json."
            )
    for word in found.words:
        console().out(word, highlight=False)
    if found.script is not None and found.script.launch is not None:
        say(f"line {found.script.line} starts {found.script.launch.program}")
    for note in found.notes:
        say(note)


@app.command("runs")
def runs(
    sources: Annotated[list[Path], typer.Argument(help="Logs of Megatron-LM, a run per log, or folders of logs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file to write the runs to.")] = Path("runs.csv"),
    gpu: Annotated[str | None, typer.Option(help="GPU type, if the logs do not name it.")] = None,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs per host.", min=1)] = 8,
    json: opt.Json = False,
) -> None:
    """
    Turn training logs into measured runs, for calibrate and backtest.

    Example: [bold]pipette-opt import runs logs/ -o runs.csv --gpu h100-80gb[/]
    """
    from pipette_opt.base.files import is_stdout, write_atomically
    from pipette_opt.base.units import counted
    from pipette_opt.cli.output import check_stdout, say, say_written, show_json
    from pipette_opt.read.megatron_logs import import_runs
    from pipette_opt.read.runs import read_runs

    check_stdout(json, out)
    text, notes = import_runs(sources, gpu=gpu, gpus_per_node=gpus_per_node)
    write_atomically(out, text)
    num_runs = len(text.splitlines()) - 1 if is_stdout(out) else len(read_runs(out))
    if json:
        show_json({"runs": str(out), "num_runs": num_runs, "notes": notes})
        return
    for note in notes:
        say(f"- {note}")
    say_written(out, counted(num_runs, "run"))
