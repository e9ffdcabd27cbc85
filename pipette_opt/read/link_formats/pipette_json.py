"""Format of Pipette's JSON: a matrix of bandwidths in mpiGraph's MB/s."""

from collections.abc import Iterator

from pipette_opt.options.links import LinkOptions
from pipette_opt.read.fields import unused_keys
from pipette_opt.read.link_format import LinkFile, link_format
from pipette_opt.read.link_formats.mpigraph import matrix_facts
from pipette_opt.read.matrices import PIPETTE_KEYS, is_pipette_json, read_pipette_json
from pipette_opt.read.measurements import Fact, Note


@link_format(
    "Pipette (gpus and bandwidth)",
    lambda file: file.content is None or is_pipette_json(file.content),
    order=90,
    is_json=True,
)
def read_pipette(file: LinkFile, asked: LinkOptions) -> Iterator[Fact]:
    """Yield the bandwidth of each pair of hosts; ``InputError`` for JSON that is invalid."""
    yield from matrix_facts(read_pipette_json(file.path), "Pipette's JSON")
    if unused := unused_keys(file.content, PIPETTE_KEYS):
        yield Note(kind="unused", text=unused)
