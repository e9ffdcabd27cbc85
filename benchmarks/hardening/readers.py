"""
Readers of users' files as functions of bytes, with seed files, and a mutator of such files.

A reader may return or raise ``PipetteError``. Any other exception is a crash.
"""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipette_opt.base.shipped import shipped_path

SEEDS = Path(__file__).with_name("seeds")

STEM = "osu_bw_n1_n2"
"""Name of the file that a reader gets; tests of host pairs read host names from it."""

NASTY = (
    "-1",
    "0",
    "1e999",
    "nan",
    "-inf",
    "99999999999999999999999",
    "9" * 5000,
    "1.5",
    "true",
    "null",
    "~",
    "''",
    "[]",
    "{}",
    "&a [*a, *a]",
    "!!python/object/apply:os.system ['true']",
    "<<: *a",
    "\x00",
    "\ufeff",
    "é",
    "\u202e",
    "../../../etc/passwd",
    "$(touch /tmp/pwned)",
    "a;b",
    "gpu[01-99999999]",
    "gpu[01-",
    "--tensor-model-parallel-size",
    "--num-layers 0",
    "1,2,3",
    "\t",
    " ",
)
"""Words that are hard for readers: no numbers, no sizes, no names, and text that other programs would run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """
    Reader of users' files.

    Parameters
    ----------
    read
        Function that is called with the path of a file.
    suffix
        Suffix of that file.
    seeds
        Correct files to mutate.
    """

    read: Callable[[Path], object]
    suffix: str
    seeds: tuple[Path, ...]


def readers() -> dict[str, Reader]:
    """Return all readers by name."""
    from pipette_opt.read.cluster import read_cluster
    from pipette_opt.read.links import import_links
    from pipette_opt.read.megatron_args import read_megatron_args
    from pipette_opt.read.model import read_model
    from pipette_opt.read.profile import read_profile
    from pipette_opt.read.runs import read_rows
    from pipette_opt.read.stack import read_stack
    from pipette_opt.report.plan_file import read_plan

    data = shipped_path("data", "README.md").parent

    def of_links(path: Path) -> object:
        return import_links(path, gpu="h100", gpus_per_node=8, fill="worst")

    def of(pattern: str) -> tuple[Path, ...]:
        return tuple(sorted(SEEDS.glob(pattern)))

    return {
        "cluster": Reader(read=read_cluster, suffix=".yaml", seeds=of("cluster*.yaml")),
        "matrix": Reader(read=_cluster_with_matrix, suffix=".csv", seeds=of("matrix*.csv")),
        "model": Reader(read=read_model, suffix=".yaml", seeds=tuple(sorted((data / "architectures").glob("*.yaml")))),
        "hugging-face": Reader(read=read_model, suffix=".json", seeds=of("config*.json")),
        "megatron": Reader(read=lambda path: read_megatron_args(str(path), str(path)), suffix=".sh", seeds=of("*.sh")),
        "links": Reader(read=of_links, suffix=".log", seeds=of("links/*")),
        "runs": Reader(read=read_rows, suffix=".csv", seeds=of("runs*.csv")),
        "stack": Reader(read=read_stack, suffix=".yaml", seeds=tuple(sorted((data / "stacks").glob("*.yaml")))),
        "profile": Reader(read=read_profile, suffix=".csv", seeds=of("profile*.csv")),
        "plan": Reader(read=read_plan, suffix=".json", seeds=of("plan*.json")),
    }


def _cluster_with_matrix(path: Path) -> object:
    """Return a cluster of four hosts whose link matrix is the file."""
    from pipette_opt.read.cluster import parse_cluster

    inter_node = {"matrices": [{"file": path.name, "concurrent_flows": 1}], "nics_per_node": 2}
    document = {"nodes": [{"hosts": "gpu[1-4]", "gpu": "a100-80gb", "gpus_per_node": 2}], "inter_node": inter_node}
    return parse_cluster(document, "cluster.yaml", path.parent)


def mutants(seeds: tuple[bytes, ...], number: int, seed: int = 0) -> Iterator[bytes]:
    """
    Yield nearly correct files, each a seed file with one to four changes.

    A change is one of these: a word or number becomes a difficult one or another of the files; a line is dropped,
    doubled or moved; a part of another seed file is inserted; a byte is changed; the file is cut.
    """
    draw = random.Random(seed)
    words = [word for text in seeds for word in re.findall(rb"[\w.\-+]+", text)]
    for _ in range(number):
        text = draw.choice(seeds)
        for _ in range(draw.randint(1, 4)):
            text = _changed(text, draw, words, seeds)
        yield text


def _changed(text: bytes, draw: random.Random, words: list[bytes], seeds: tuple[bytes, ...]) -> bytes:
    way = draw.randrange(7)
    if way <= 2:
        places = [found.span() for found in re.finditer(rb"[\w.\-+]+", text)]
        if not places:
            return text
        start, end = draw.choice(places)
        other = draw.choice(NASTY).encode() if way <= 1 else draw.choice(words)
        return text[:start] + other + text[end:]
    if way == 3:
        lines = text.splitlines(keepends=True)
        if not lines:
            return text
        line = lines.pop(draw.randrange(len(lines)))
        for _ in range(draw.choice((0, 1, 2))):
            lines.insert(draw.randint(0, len(lines)), line)
        return b"".join(lines)
    at = draw.randint(0, len(text))
    if way == 4:
        other = draw.choice(seeds)
        start = draw.randint(0, len(other))
        return text[:at] + other[start : start + draw.randint(1, 200)] + text[at:]
    if way == 5:
        return text[:at] + bytes([draw.randrange(256)]) + text[at + 1 :]
    return text[:at]
