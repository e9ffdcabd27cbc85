"""``pipette-opt pack``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import exit_if_stopped, watched
from pipette_opt.options.questions import PackOptions


@opt.spread
def pack(
    lengths: Annotated[
        Path, typer.Argument(help="File of document lengths in tokens: lines `length`, or `length,count`.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV file to write: step, replica, micro-batch of each document.")
    ] = None,
    *,
    asked: PackOptions,
    json: opt.Json = False,
) -> None:
    """
    Pack documents of unequal lengths into micro-batches so that training steps are fastest, with a proven bound.

    Attention makes long documents costlier than their tokens say, so bins of equally many tokens differ in work, and
    replicas wait for the slowest. Documents that need more than one step are spread over the fewest.

    Example: [bold]pipette-opt pack lengths.csv --bin 8192 --replicas 8 --microbatches 8 --model llama-3-8b -o
    packing.csv[/]
    """
    from pipette_opt.cli.output import check_outputs, say_written, show, show_json, write_csv
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.pack import pack as library_pack
    from pipette_opt.report.cells import as_rich

    check_outputs(json, out)
    with watched(quiet=json, keeps_plans=True) as watcher:
        found = for_commands(library_pack)(lengths, **{"model": None, **opt.given_of(asked)}, on_progress=watcher)
    if out is not None:
        write_csv(out, found.rows())
    if json:
        show_json(found.as_dict())
    else:
        show(*found.sentences, as_rich(found.table), beside=out)
        if out is not None:
            say_written(out, "packing")
    exit_if_stopped(watcher, "the packing is the best until then")
