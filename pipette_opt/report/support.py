"""What is modelled of a model on a kind of GPU, from which constants, and against which public runs it was tested."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from pipette_opt.base.units import percent
from pipette_opt.read.backtests import BackTest, of_model, read_backtests
from pipette_opt.read.bands import FP8, WIDE, KindBand, kind_of, shipped_bands
from pipette_opt.read.gpus import CatalogueEntry
from pipette_opt.report.cells import QUIET, columns_table, spaced, titled
from pipette_opt.specs import LayerKind, ModelSpec, NotModelled, StackSpec
from pipette_opt.specs.model_gaps import not_modelled_of
from pipette_opt.specs.precision import PRECISION_RECIPES
from pipette_opt.specs.stack import CONSTANTS

PLAIN = ("fp32", "fp16", "bf16")
"""Formats without a recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """
    What is known of a model on a kind of GPU.

    Parameters
    ----------
    layers
        How many of each kind, in words.
    not_modelled
        Parts of the model that the numbers leave out.
    formats
        Formats of products that the GPU has, each with the origin of its rate: ``measured``, ``interpolated``,
        ``assumed``, and whose kernels were measured.
    constants
        Constants of the stack by origin.
    links
        Where the rates of links are from, as long as the user gives none.
    tested
        Public runs of models with this shape on this GPU.
    elsewhere
        The same on other GPUs.
    kinds
        Public runs of jobs of its kinds, by kind: dense or experts, format, generation of GPU.
    verdict
        One sentence.
    """

    model: str
    gpu: str
    layers: Mapping[str, int]
    not_modelled: tuple[NotModelled, ...]
    formats: Mapping[str, str]
    constants: Mapping[str, tuple[str, ...]]
    links: str
    tested: tuple[BackTest, ...]
    elsewhere: tuple[BackTest, ...]
    kinds: Mapping[str, KindBand]
    verdict: str


def support_of(name: str, model: ModelSpec, entry: CatalogueEntry, stack: StackSpec) -> Support:
    """What the shipped tables say of a model on a kind of GPU; ``name``: what the user calls the model."""
    gpu, by_gpu = entry.gpu, of_model(read_backtests(), model)
    tested = by_gpu.get(gpu.name, ())
    origins = {one: [name for name in CONSTANTS if stack.origins.get(name, "assumed") == one] for one in ORIGINS}
    bands = shipped_bands().kinds
    kinds = {kind: bands[kind] for one in (WIDE, FP8) if (kind := kind_of(model, one, gpu.name)) in bands}
    layers = Counter(map(_kind_words, model.layers))
    if model.mtp_num_layers:
        layers["multi-token prediction"] = model.mtp_num_layers
    return Support(
        model=name,
        gpu=gpu.name,
        layers=dict(layers),
        not_modelled=not_modelled_of(model, None),
        formats={one: _origin(entry, one) for one in _formats(entry)},
        constants={one: tuple(names) for one, names in origins.items() if names},
        links=f"assumed: a share of the nominal rate inside a host ({entry.intra_node_bytes_per_s / 1e9:g} GB/s) and "
        "between hosts; measured where the cluster file says so",
        tested=tested,
        elsewhere=tuple(one for other, rows in by_gpu.items() if other != gpu.name for one in rows),
        kinds=kinds,
        verdict=_verdict(name, entry, tested, by_gpu, kinds),
    )


ORIGINS = ("measured", "interpolated", "assumed")
"""Where a constant can be from, the best first."""


def _kind_words(kind: LayerKind) -> str:
    """A kind of layer in words: what mixes tokens, and what follows."""
    parts = [one.replace("_", " ") for one in (kind.mixer, kind.mlp) if one != "none"]
    return ", ".join(["dense MLP" if one == "dense" else one for one in parts]) or "nothing"


def _formats(entry: CatalogueEntry) -> list[str]:
    """Formats of products that the GPU has."""
    peaks = entry.gpu.peak_flops
    narrow = [f"fp8 {name}" if recipe.peak != "nvfp4" else name for name, recipe in PRECISION_RECIPES.items()]
    recipes = list(PRECISION_RECIPES.values())
    return [one for one in PLAIN if one in peaks] + [
        word for word, recipe in zip(narrow, recipes, strict=True) if recipe.peak in peaks
    ]


def _origin(entry: CatalogueEntry, word: str) -> str:
    """Origin of the rate of products in a format."""
    laws, name = entry.gpu.efficiency, word.removeprefix("fp8 ")
    recipe = PRECISION_RECIPES.get(name)
    law = "wide" if recipe is None else recipe.law
    like = "" if laws.like == entry.gpu.name else f" (kernels of {laws.like})"
    if law in ("block", "fp4") and getattr(laws, law) is None:
        return f"assumed: as fp8 with one scale a tensor{like}"
    return f"{laws.origin}{like}"


def _verdict(
    name: str,
    entry: CatalogueEntry,
    tested: tuple[BackTest, ...],
    by_gpu: Mapping[str, tuple[BackTest, ...]],
    kinds: Mapping[str, KindBand],
) -> str:
    gpu, origin = entry.gpu.name, entry.gpu.efficiency.origin
    rates = f"rates of products on {gpu} are {origin}"
    if tested:
        runs, error = _together(tested)
        return f"{name} on {gpu}: {runs} public runs, times {percent(error)} off in the mean; {rates}."
    others = tuple(one for rows in by_gpu.values() for one in rows)
    if others:
        runs, error = _together(others)
        where = " and ".join(by_gpu)
        return f"{name} on {gpu}: never tested; {runs} public runs on {where}, {percent(error)} off; {rates}."
    runs = sum(one.runs for one in kinds.values())
    like = f"{runs} public runs of other models of its kind on such GPUs" if runs else "no public run like it"
    return f"{name} on {gpu}: never tested; {like}; {rates}."


def _together(rows: Iterable[BackTest]) -> tuple[int, float]:
    """Runs, and their mean error."""
    some = list(rows)
    runs = sum(one.runs for one in some)
    return runs, sum(one.runs * one.error for one in some) / runs


def support_table(found: Support) -> RenderableType:
    """For people: the verdict, what is modelled, where constants are from, and what was compared."""
    parts: list[RenderableType] = [Text(found.verdict)]
    layers = columns_table("layers", "number >")
    for kind, count in found.layers.items():
        layers.add_row(Text(kind), Text(str(count)))
    parts.append(titled("Modelled", spaced(layers)))
    lines = [f"{one.option} {one.value}".strip() + f": {one.why}" for one in found.not_modelled] or ["Nothing."]
    parts.append(titled("Not counted", spaced(Text("\n".join(lines)))))
    origins = columns_table("constants", "origin")
    for word, origin in found.formats.items():
        origins.add_row(Text(f"products in {word}"), Text(origin))
    for origin, names in found.constants.items():
        origins.add_row(Text(", ".join(names)), Text(origin))
    origins.add_row(Text("links"), Text(found.links))
    origins.add_row(Text("memory"), Text("counted; what is beside tensors interpolated between traced layers"))
    parts.append(titled("Where numbers are from", spaced(origins)))
    parts.append(titled("Tested against", spaced(_tests_table(found))))
    legend = (
        "Middle: median of measured over predicted time. Error: mean of how far predictions were off. Rows of a shape "
        "(layers, hidden size, heads, experts) count as one model. Written by the commands in the last column."
    )
    return Group(*parts, Text(), Text(legend, style=QUIET))


def _tests_table(found: Support) -> RenderableType:
    table = columns_table("GPU", "format", "runs >", "GPUs >", "middle >", "error >", "by")
    for one in (*found.tested, *found.elsewhere):
        sizes = "-".join(map(str, dict.fromkeys(one.gpus)))
        cells = [one.gpu, one.precision, str(one.runs), sizes, f"{one.middle:.2f}", percent(one.error), one.by]
        table.add_row(*map(Text, cells))
    for kind, band in found.kinds.items():
        by = "benchmarks/backtest/bands.py"
        cells = ["of its kind", kind, str(band.runs), f"-{band.largest_gpus}", f"{band.middle:.2f}", "", by]
        table.add_row(*map(Text, cells))
    return table if table.row_count else Text("No public run of this model, nor of its kind on such GPUs.")
