"""
Coverage of NVIDIA's own recipes: ``python -m benchmarks.recipes [--label "some commit"]``.

With ``--solve N``, the jobs of a sample are searched, too: ``benchmarks/results/recipes-solved.md``.

Each visible recipe of ``shared/recipes`` is treated as a user's Megatron-LM argument file. It is read, checked against
Megatron-Core's rules, priced on the GPUs that it is for, and exported as arguments. A recipe that is marked as illegal
must be refused. Every option of a recipe has one status: read, no effect, not modelled (then the notes of the launch
name the quantity that is off and its direction), refused, or unknown. The page is ``benchmarks/results/recipes.md``:
one table for each label, the newest first.
"""

import argparse
import csv
import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

from benchmarks import recipes_solved
from benchmarks.measured import shared_folder
from pipette_opt.base.errors import InputError
from pipette_opt.base.files import write_atomically
from pipette_opt.candidates.legality import broken_rules
from pipette_opt.export.megatron import megatron_options as written_options
from pipette_opt.job.read import read_job
from pipette_opt.library.current import Current, current_of
from pipette_opt.options.description import JobOptions
from pipette_opt.plans.plan import Plan
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.megatron_args import MegatronArgs, parse_megatron_args
from pipette_opt.read.megatron_options import all_options, given_options, option_values
from pipette_opt.read.megatron_table import field_of, megatron_options
from pipette_opt.specs import TrainingSpec

SHARED = shared_folder()
RESULTS = Path(__file__).parent / "results"

NO_PART_OF_A_PLAN = (
    "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "pipeline_model_parallel_layout",
    "padded_vocab_size",
    "vocab_size",
    "make_vocab_size_divisible_by",
    "transformer_impl",
    "max_position_embeddings",
    "use_tp_pp_dp_mapping",
)
"""Options that have an equivalent: layers of stages and vocabulary are compared by their effect."""

OPTIONS_LISTED = 25
"""Maximum number of rows in a table of options. Chosen."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """
    Result for one recipe.

    Parameters
    ----------
    illegal
        Reason why it cannot start, by its mark or by Megatron-LM's own checks; then it must be refused.
    refused
        Reason why it is not accepted; empty if it is accepted.
    unpriced
        Reason why an accepted recipe has no time and no memory; empty if it has both.
    blocking
        Options that are refused.
    not_modelled
        Options that the numbers leave out.
    unnamed
        Options without a status, and options called harmless that the list of all options gives a large effect.
    not_written
        Options that are read, or that change the numbers, but are missing in the export.
    iteration_s, oom
        Seconds of an iteration, and the largest risk of running out of memory of any stage.
    """

    name: str
    family: str
    gpu: str
    num_gpus: int
    illegal: str = ""
    refused: str = ""
    unpriced: str = ""
    blocking: str = ""
    not_modelled: str = ""
    unnamed: str = ""
    not_written: str = ""
    iteration_s: float = math.nan
    oom: float = math.nan

    @property
    def is_accepted(self) -> bool:
        """Return whether a legal recipe is accepted, or an illegal one is refused for its illegality."""
        return bool(self.refused) and not self.blocking if self.illegal else not self.refused

    @property
    def is_priced(self) -> bool:
        """Return whether the recipe is accepted and, if legal, has a time and memory."""
        return self.is_accepted and (bool(self.illegal) or not self.unpriced)

    @property
    def is_named(self) -> bool:
        """Return whether every option has a status."""
        return not self.unnamed

    @property
    def is_written(self) -> bool:
        """Return whether the recipe is accepted and, if legal, its export agrees with it."""
        return self.is_accepted and (bool(self.illegal) or not self.not_written)


def measured(recipe: dict[str, Any]) -> Row:
    """Return the result for one recipe, through all steps."""
    path = SHARED / "recipes" / "megatron_args" / f"{recipe['name']}.args"
    text, size = path.read_text(encoding="utf-8"), recipe["num_gpus"]
    places = places_of(text, path.stem)
    row = Row(
        name=recipe["name"],
        family=recipe["family"],
        gpu=recipe["gpu"],
        num_gpus=size,
        illegal="; ".join([*recipe["illegal"], *refused_by_megatron().get(recipe["name"], [])]),
        blocking=" ".join(sorted(name for name, place in places.items() if place == "refused")),
        not_modelled=" ".join(sorted(name for name, place in places.items() if place == "not modelled")),
        unnamed=" ".join(unnamed(text, path.stem)),
    )
    try:
        given = parse_megatron_args(text, path.stem, recipe["family"])
        check_legal(given, size)
    except InputError as error:
        return replace(row, refused=str(error))
    try:
        priced = price(path, given, recipe)
    except InputError as error:
        return replace(row, unpriced=str(error), not_written="not priced")
    row = replace(
        row,
        iteration_s=priced.estimate.iteration_time_s,
        oom=max(stage.oom_probability for stage in priced.memory),
    )
    return replace(row, not_written=" ".join(not_written(text, priced)))


def check_legal(given: MegatronArgs, num_gpus: int) -> None:
    """Raise ``InputError`` if Megatron-Core would refuse the launch on ``num_gpus`` GPUs."""
    if given.model is None or given.global_batch_size is None or given.seq_length is None:
        raise InputError(given.where, "describe no whole job.")
    training = given.training(
        TrainingSpec(
            global_batch_size=given.global_batch_size, seq_length=given.seq_length, precision=given.precision or "bf16"
        )
    )
    config = given.parallel_config(given.model.num_layers, num_gpus)
    broken = broken_rules(given.model, training, config)
    if given.pipeline_layout is not None:
        broken.pop("layers", None)
    if broken:
        raise InputError(given.where, "; ".join(broken.values()))


def price(path: Path, given: MegatronArgs, recipe: dict[str, Any]) -> Current:
    """Return time and memory on equal hosts of the recipe's GPU, as ``pipette-opt estimate --launch`` does."""
    usual = read_gpu_entry(recipe["gpu"]).usual_host
    per_node = min(recipe["num_gpus"], usual.gpus_per_node if usual else 8)
    options = JobOptions(
        nodes=str(recipe["num_gpus"] // per_node), gpu=recipe["gpu"], gpus_per_node=per_node, launch=str(path)
    )
    return current_of(replace(read_job(options), launch=given), None)


Place = Literal["read", "in part", "no effect", "not modelled", "refused", "unknown"]
"""Effect of a given option on predictions."""


def places_of(text: str, where: str) -> dict[str, Place]:
    """
    Return the effect of each option of a command line on predictions, by option; also for refused launches.

    ``no effect``: the option is harmless, or needs another option that is absent.
    """
    values, unknown = all_options(text, where)
    found: dict[str, Place] = {megatron_options()[field].name: _place(field, values) for field in values}
    return found | dict.fromkeys(unknown, "unknown")


def _place(field: str, values: Mapping[str, Any]) -> Place:
    option = megatron_options()[field]
    if option.status == "harmless" or not option.matters(values):
        return "no effect"
    unlike = option.unlike(values[field])
    if option.status in ("modelled", "priced") or not unlike:
        return "not modelled" if unlike and (option.time or option.memory) else "read"
    return {"refused": "refused", "in part": "in part"}.get(option.status, "not modelled")  # type: ignore[return-value]


def unnamed(text: str, where: str) -> list[str]:
    """Return the options without a status, and options called harmless that the list of all options calls large."""
    found = []
    for name, place in places_of(text, where).items():
        option = megatron_options().get(field_of(name))
        dropped = option is not None and option.status == "harmless" and name in large_options()
        if place == "unknown" or dropped:
            found.append(name)
    return found


def not_written(text: str, priced: Current) -> list[str]:
    """Return the options that matter to the numbers and that an export of the launch changes or omits."""
    plan = SimpleNamespace(
        config=priced.config,
        placement=priced.placement,
        global_batch_size=priced.instance.training.global_batch_size,
        p2p="blocking",
        inputs={"model": asdict(priced.instance.model), "training": asdict(priced.instance.training)},
    )
    try:
        words = [word for option in written_options(cast("Plan", plan)) for word in option]
    except InputError as error:
        return [f"refused: {error}"]
    again_text = " ".join(f"'{word}'" if re.search(r"[\s()*|]", word) else word for word in words)
    before, after = option_values(text, "the recipe"), option_values(again_text, "the export")
    lost = []
    for field, value in before.items():
        option = megatron_options()[field]
        if option.status == "harmless" or field in NO_PART_OF_A_PLAN or not option.matters(before):
            continue
        if comparable(option.name, value) != comparable(option.name, after.get(field)):
            lost.append(option.name)
    again = parse_megatron_args(again_text, "the export")
    first = given_options(text, "the recipe")
    if sorted(map(repr, first.not_modelled)) != sorted(map(repr, given_options(again_text, "the export").not_modelled)):
        lost.append("notes")
    same_layers = again.layers_per_stage(priced.instance.model.num_layers) == priced.config.layers_per_stage
    return lost if same_layers else [*lost, "layers per stage"]


def comparable(name: str, value: Any) -> Any:
    """Return a normal form of a value, in which equivalent flags, degrees, lists and patterns are equal."""
    if value in (None, False, 1, "1"):
        return None
    if isinstance(value, list):
        return sorted(map(str, value))
    if name == "--hybrid-layer-pattern":  # bars say which stage has which layers, which is compared by itself
        return re.sub(r"[\s|]", "", str(value))
    try:
        return float(value) if not isinstance(value, bool) else value
    except ValueError:
        return re.sub(r"[\s()]", "", value)


@cache
def large_options() -> frozenset[str]:
    """Return the options of Megatron-LM whose effect the list of all options calls large."""
    with (SHARED / "recipes" / "options.csv").open(encoding="utf-8", newline="") as file:
        return frozenset(row["option"] for row in csv.DictReader(file) if row["weight"] == "large")


@cache
def refused_by_megatron() -> dict[str, list[str]]:
    """Return the messages of Megatron-LM's ``validate_args`` for recipes that it does not start, by recipe."""
    with (SHARED / "recipes" / "megatron_args" / "index.csv").open(encoding="utf-8", newline="") as file:
        return {row["name"]: [row["validate_args"]] for row in csv.DictReader(file) if row["validate_args"] != "ok"}


def recipes() -> list[dict[str, Any]]:
    """Return the visible recipes."""
    lines = (SHARED / "recipes" / "recipes.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def page(rows: Sequence[Row], label: str, seconds: float) -> str:
    """Return the section of the page for one label."""
    legal = [row for row in rows if not row.illegal]
    whole = [row for row in rows if row.is_priced and row.is_named and row.is_written]
    priced = [row for row in legal if row.is_priced]
    full = [row for row in priced if row.oom > 0.5]
    parts = [
        f"## {label}",
        f"{len(rows)} recipes, {len(rows) - len(legal)} of them illegal, in {seconds:.0f} s. All steps right: "
        f"{len(whole)} ({len(whole) / len(rows):.0%}). Of {len(priced)} legal ones with a price {len(full)} are called "
        "out of memory (a risk above 0.5).",
        family_table(rows),
        "Refused options, with their number of recipes, and the recipes that no other option blocks:",
        option_table(rows, "blocking"),
        "Options that the numbers leave out; the notes of the launch name each:",
        option_table(rows, "not_modelled"),
        "Options that the export changes or omits:",
        option_table(rows, "not_written"),
        "Other reasons why recipes are not accepted or not priced:",
        reason_table(rows),
    ]
    return "\n\n".join(parts) + "\n"


def family_table(rows: Sequence[Row]) -> str:
    """Return a table of the recipes that pass each step, by family."""
    lines = [
        "| family | recipes | accepted | priced | every option named | written back | all |",
        "|---|" + "---:|" * 6,
    ]
    families = sorted({row.family for row in rows})
    for family in [*families, None]:
        ours = [row for row in rows if family in (None, row.family)]
        counts = [
            sum(row.is_accepted for row in ours),
            sum(row.is_priced for row in ours),
            sum(row.is_named for row in ours),
            sum(row.is_written for row in ours),
            sum(row.is_priced and row.is_named and row.is_written for row in ours),
        ]
        cells = [family or "**all**", str(len(ours)), *map(str, counts)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def option_table(rows: Sequence[Row], field: str) -> str:
    """Return a table of the options in a field of ``Row``, the most frequent first."""
    listed = [[word for word in getattr(row, field).split() if word.startswith("--")] for row in rows]
    counts = Counter(option for options in listed for option in options)
    prefixes = [{option.split("-")[2] for option in options} for options in listed]
    alone = Counter(
        option for options, kinds in zip(listed, prefixes, strict=True) for option in options if len(kinds) == 1
    )
    lines = ["| option | recipes | alone, or with others of its first word |", "|---|---:|---:|"]
    lines += [f"| `{name}` | {count} | {alone[name]} |" for name, count in counts.most_common(OPTIONS_LISTED)]
    rest = len(counts) - OPTIONS_LISTED
    return "\n".join([*lines, *([f"| {rest} more | | |"] if rest > 0 else [])]) if counts else "None."


def reason_table(rows: Sequence[Row]) -> str:
    """Return a table of reasons for refusal, each with an example, the most frequent first."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for kind, text in (("not accepted", row.refused), ("not priced", row.unpriced)):
            if text and not row.illegal and not row.blocking:
                reason = re.sub(r"^[\w.-]+: ", "", text).replace("|", "\\|")
                found.setdefault(f"{kind} | {re.sub(r'[0-9][0-9,.]*', 'N', reason)[:110]}", []).append(row.name)
    for row in rows:
        if row.illegal and not row.refused:
            found.setdefault(f"illegal, and accepted | {row.illegal}", []).append(row.name)
    if not found:
        return "None."
    lines = ["| what | reason | recipes | example |", "|---|---|---:|---|"]
    for reason, names in sorted(found.items(), key=lambda item: -len(item[1])):
        lines.append(f"| {reason} | {len(names)} | {names[0]} |")
    return "\n".join(lines)


def with_section(text: str, section: str, label: str) -> str:
    """Return the page with the section of this label replaced or added; the new section comes first."""
    head, *others = re.split(r"(?m)^(?=## )", text)
    return "\n".join(
        part.strip() + "\n" for part in [head, section, *(o for o in others if o.split("\n")[0] != f"## {label}")]
    )


HEAD = """# NVIDIA's recipes, one by one

Results for the visible recipes of Megatron-Bridge (`shared/recipes`, 229 Megatron-LM argument files). Made by
`python -m benchmarks.recipes`.

- Accepted: read, and legal by Megatron-Core's rules on the recipe's GPUs; an illegal recipe
  must be refused for its illegality.
- Priced: time and memory on equal hosts of the recipe's GPU, links at their usual share of the nominal rate.
- Every option named: each one is read, or has no effect, or is in the notes of the launch with what is off and in which
  direction, or is refused with the reason.
- Written back: the export of the priced launch says the same as the recipe, wherever time, memory or model depend on
  it.
"""


def main(arguments: Iterable[str] | None = None) -> None:
    """Process the recipes, print the section, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--label", default="now", help="Title of the section.")
    parser.add_argument("--only", default="", help="Only recipes whose name contains this text; no page is written.")
    parser.add_argument("--solve", type=int, default=0, help="Search the jobs of this number of recipes instead.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the sample that is searched.")
    parser.add_argument(
        "--told", action="store_true", help="Start searches from the recipe, as solve of its file does."
    )
    parser.add_argument("--time-limit", type=float, default=60.0, help="Time limit of each search, seconds.")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="Clock that counts the seconds of a search."
    )
    options = parser.parse_args(list(arguments) if arguments is not None else None)
    chosen = [recipe for recipe in recipes() if options.only in recipe["name"]]
    if options.solve:
        for section in solved_pages(chosen, options):
            if not options.only:
                _write(RESULTS / "recipes-solved.md", recipes_solved.HEAD, section, options.label)
        return
    begin, rows = time.monotonic(), []
    for index, recipe in enumerate(chosen):
        rows.append(measured(recipe))
        print(f"\r{index + 1} of {len(chosen)}", end="", flush=True)
    section = page(rows, options.label, time.monotonic() - begin)
    print(f"\n{section}")
    if options.only:
        print("\n".join(map(str, rows)))
        return
    _write(RESULTS / "recipes.md", HEAD, section, options.label)


def _write(out: Path, head: str, section: str, label: str) -> None:
    write_atomically(out, with_section(out.read_text(encoding="utf-8") if out.is_file() else head, section, label))


def solved_pages(chosen: Sequence[dict[str, Any]], options: argparse.Namespace) -> Iterator[str]:
    """Yield the section on plans for the jobs of a sample of priced recipes, once after each search."""
    if options.clock == "cpu":
        recipes_solved.by_cpu()
    rows = []
    for recipe in recipes_solved.in_turn(chosen, options.seed):
        path = SHARED / "recipes" / "megatron_args" / f"{recipe['name']}.args"
        try:
            given = parse_megatron_args(path.read_text(encoding="utf-8"), path.stem, recipe["family"])
            check_legal(given, recipe["num_gpus"])
            priced = price(path, given, recipe)
        except InputError:
            continue
        rows.append(recipes_solved.solved(recipe, priced, options.time_limit, given if options.told else None))
        print(rows[-1], flush=True)
        yield recipes_solved.page(rows, options.label, options.clock)
        if len(rows) == options.solve:
            break


if __name__ == "__main__":
    main()
