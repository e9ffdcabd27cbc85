"""
Forged plan files: what is changed in a right one, and the rule that says so.

``python tests/verify/forgeries.py`` makes the plan, forges it and prints the table.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from pipette_opt.base.errors import InputError, PlanError
from pipette_opt.library.verify import check_file

Content = dict[str, Any]

SOLVE = (
    "solve --cluster CLUSTER --model llama-3-8b --global-batch-size 32 --seq-length 4096 --num-gpus 8 "
    "--tensor-parallel 1,2 --pipeline-parallel 2 --virtual-pipeline 1,2 --micro-batch-size 1 --context-parallel 1 "
    "--recompute none,selective --workers 2 "
    "--time-limit 20 --gap-limit 0 -o PLAN"
)
"""Two of three hosts of four GPUs: few enough for all placements of a configuration to be simulated."""

CLUSTER = """
name: three-hosts
nodes:
  - {hosts: "n[1-3]", gpu: a100-80gb, gpus_per_node: 4}
intra_node: {bandwidth_gb_per_s: 235, latency_us: 8}
inter_node:
  latency_us: 12
  nics_per_node: 4
  matrices:
    - {file: links.csv, concurrent_flows: 4}
"""

LINKS = "from/to,n1,n2,n3\nn1,,30,12\nn2,28,,20\nn3,13,21,\n"


class Forgery(NamedTuple):
    """One change of a plan file; ``rule`` is named, or ``reader`` where the file cannot be read any more."""

    field: str
    value: str
    rule: str
    change: Callable[[Content], None]


LAYOUT = "parallel.pipeline_model_parallel_layout"


def put(path: str, value: Any) -> Callable[[Content], None]:
    """A field replaced; a function is given what was there."""

    def change(content: Content) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        place: Any = content
        for part in parents:
            place = place[part]
        place[last] = value(place[last]) if callable(value) else value

    return change


def several(*changes: Callable[[Content], None]) -> Callable[[Content], None]:
    """Changes that go together."""

    def change(content: Content) -> None:
        for one in changes:
            one(content)

    return change


def times(factor: float) -> Callable[[float], float]:
    """A figure multiplied."""
    return lambda value: value * factor


def moved(what: str) -> Callable[[Content], None]:
    """Half of the compute time called idle; the sum stays."""

    def change(content: Content) -> None:
        causes, other = content["estimate"][what], "bubble" if what == "breakdown" else "data_parallel"
        half = causes["compute"] / 2
        causes["compute"], causes[other] = half, causes[other] + half

    return change


def all_faster(content: Content) -> None:
    """Every time of the plan and its certificate, and what follows from them, by a tenth: nothing contradicts."""
    estimate, certificate = content["estimate"], content["certificate"]
    for name in ("iteration_time_s", "breakdown", "critical_path"):
        value = estimate[name]
        estimate[name] = {k: v * 0.9 for k, v in value.items()} if isinstance(value, dict) else value * 0.9
    for name in ("tokens_per_s", "mfu", "hfu"):
        estimate[name] /= 0.9
    for name in ("objective_s", "lower_bound_s", "placement_dependent_s"):
        certificate[name] *= 0.9
    for part in certificate["proof"]:
        part["bound_s"] = part["bound_s"] and part["bound_s"] * 0.9
    if estimate["band"]:
        estimate["band"]["low_s"] *= 0.9
        estimate["band"]["high_s"] *= 0.9


def worse_hosts(content: Content) -> None:
    """The plan on two hosts with a slow link, all of its figures honest but for the proof: still called optimal."""
    from dataclasses import replace

    import numpy as np

    from pipette_opt.library.plans import plan_with_band
    from pipette_opt.plans.plan import Proof, why_unused
    from pipette_opt.report.plan_file import plan_from_dict, plan_to_dict
    from pipette_opt.simulate.estimate import estimate
    from pipette_opt.simulate.solutions import _links_free

    plan, instance = plan_from_dict(content), instance_of(content)
    hosts = instance.cluster.hosts
    used = plan.placement.nodes_used
    placement = replace(plan.placement, node=np.where(plan.placement.node == used[0], 0, 2))
    simulated = estimate(instance, plan.config, placement)
    seconds = simulated.iteration_time_s
    swapped = estimate(instance, plan.config, replace(placement, node=np.where(placement.node == 0, 1, placement.node)))
    parts = plan.certificate.proof
    by_search = sum(one.configurations for one in parts if one.bound_s)
    proof = (*(one for one in parts if not one.bound_s), Proof(by="search", configurations=by_search, bound_s=seconds))
    certificate = replace(
        plan.certificate,
        objective_s=seconds,
        lower_bound_s=seconds,
        gap=0.0,
        placement_gap=0.0,
        placement_dependent_s=seconds - estimate(_links_free(instance), plan.config, placement).iteration_time_s,
        proof=proof,
        num_pruned=0,
        fastest_s=None,
        joint_model=None if (model := plan.certificate.joint_model) is None else replace(model, bound_s=seconds),
    )
    forged = replace(
        plan,
        placement=placement,
        estimate=simulated,
        certificate=certificate,
        alternatives=(),
        fastest=None,
        listed=None,
        overlapped=None,
        usual=None,
        risks=(),
        unused_hosts={hosts[1]: why_unused(hosts[0], swapped.iteration_time_s, seconds)},
    )
    content.update(plan_to_dict(plan_with_band(forged, instance)))


def instance_of(content: Content) -> Any:
    """The job of a plan file."""
    from pipette_opt.library.plans import instance_of
    from pipette_opt.read.cluster import read_cluster
    from pipette_opt.report.plan_file import plan_from_dict

    cluster = Path(content["inputs"]["cluster"]["path"])
    return instance_of(plan_from_dict(content), read_cluster(cluster), cluster)


def exchange_hosts(content: Content) -> None:
    """The two hosts of the plan change places."""
    first, last = content["placement"][0]["host"], content["placement"][-1]["host"]
    for row in content["placement"]:
        row["host"] = last if row["host"] == first else first


def part(by: str, field: str, value: Any) -> Callable[[Content], None]:
    """A field of what one reason ruled out."""

    def change(content: Content) -> None:
        (one,) = (one for one in content["certificate"]["proof"] if one["by"] == by)
        put(field, value)(one)

    return change


def named(by: str, field: str) -> Callable[[Content], None]:
    """A field of the first rule, bound or engine of one reason: one more, or another text."""

    def change(content: Content) -> None:
        (one,) = (one for one in content["certificate"]["proof"] if one["by"] == by)
        one["named"][0][field] = one["named"][0][field] + (1 if field == "configurations" else " of another kind")

    return change


def booked_under(by: str) -> Callable[[Content], None]:
    """What the search ruled out is booked under another reason."""

    def change(content: Content) -> None:
        parts = {one["by"]: one for one in content["certificate"]["proof"]}
        if by in parts:
            parts[by]["configurations"] += parts["search"]["configurations"]
            content["certificate"]["proof"].remove(parts["search"])
        else:
            parts["search"].update(by=by, bound_s=None)

    return change


def at_another_risk(content: Content) -> None:
    """A plan with less risk is said to be the fastest at a level that is not searched."""
    first = next(other for other in content["alternatives"] if other["role"] == "less risk")
    first["max_oom_risk"] = 0.013


ROBUST = {
    **dict.fromkeys(("value_s", "best_s", "lower_bound_s", "factor"), 1.0),
    "gap": 0.0,
    "share": 0.9,
    "measured_runs": 0,
    "groups": 1,
    "left_out_s": None,
}
"""Upper end of the band of a plan, as a certificate has it."""

FORGERIES = (
    Forgery("memory.0.predicted_gib", "50", "memory_is_reproduced", put("memory.0.predicted_gib", 50.0)),
    Forgery("memory.0.upper_gib", "60", "memory_is_reproduced", put("memory.0.upper_gib", 60.0)),
    Forgery(
        "memory.0, both",
        "50 of 60",
        "memory_is_reproduced",
        several(put("memory.0.predicted_gib", 50.0), put("memory.0.upper_gib", 60.0)),
    ),
    Forgery("memory.0.capacity_gib", "80", "memory_is_reproduced", put("memory.0.capacity_gib", 80.0)),
    Forgery(
        "memory.0.oom_probability",
        "half",
        "memory_is_reproduced",
        put("memory.0.oom_probability", lambda old: old / 2),
    ),
    Forgery(
        "memory.0.components_gib.activations",
        "half",
        "memory_is_reproduced",
        put("memory.0.components_gib.activations", lambda old: old / 2),
    ),
    Forgery(
        "memory.0.extrapolates",
        "the contrary",
        "memory_is_reproduced",
        put("memory.0.extrapolates", lambda old: not old),
    ),
    Forgery("memory", "one stage less", "memory_fits", put("memory", lambda old: old[:1])),
    Forgery("inputs.max_oom_risk", "0.2", "memory_is_reproduced", put("inputs.max_oom_risk", 0.2)),
    Forgery("inputs.max_oom_risk", "2", "plan_is_searched", put("inputs.max_oom_risk", 2.0)),
    Forgery("inputs.max_oom_risk", "1e-7", "memory_fits", put("inputs.max_oom_risk", 1e-7)),
    Forgery(
        "estimate.iteration_time_s",
        "a tenth less",
        "estimate_is_reproduced",
        put("estimate.iteration_time_s", times(0.9)),
    ),
    Forgery("all times and rates", "a tenth less", "estimate_is_reproduced", all_faster),
    Forgery("estimate.breakdown", "half of compute is idle", "estimate_is_reproduced", moved("breakdown")),
    Forgery("estimate.critical_path", "half of compute is data", "estimate_is_reproduced", moved("critical_path")),
    Forgery("estimate.breakdown.bubble", "0", "estimate_adds_up", put("estimate.breakdown.bubble", 0.0)),
    Forgery("estimate.tokens_per_s", "a tenth more", "estimate_adds_up", put("estimate.tokens_per_s", times(1.1))),
    Forgery("estimate.mfu", "a tenth more", "estimate_is_reproduced", put("estimate.mfu", times(1.1))),
    Forgery("estimate.hfu", "a tenth less", "estimate_is_reproduced", put("estimate.hfu", times(0.9))),
    Forgery("estimate.band.high_s", "a tenth less", "band_is_reproduced", put("estimate.band.high_s", times(0.9))),
    Forgery("estimate.band", "none", "band_is_reproduced", put("estimate.band", None)),
    Forgery("certificate.robust", "of another objective", "robust_holds", put("certificate.robust", ROBUST)),
    Forgery("inputs.objective", "robust", "robust_holds", put("inputs.objective", "robust")),
    Forgery(
        "certificate.chosen_by",
        "something",
        "nothing_else_is_said",
        put("certificate.chosen_by", {"gap": 0.0}),
    ),
    Forgery("verdict", "Fits.", "nothing_else_is_said", put("verdict", "Fits.")),
    Forgery(
        "certificate.objective_s", "a tenth less", "objective_is_reproduced", put("certificate.objective_s", times(0.9))
    ),
    Forgery("certificate.gap", "0.01", "certificate_is_consistent", put("certificate.gap", 0.01)),
    Forgery("certificate.placement_gap", "0.01", "certificate_is_consistent", put("certificate.placement_gap", 0.01)),
    Forgery("certificate.status", "FEASIBLE", "certificate_is_consistent", put("certificate.status", "FEASIBLE")),
    Forgery(
        "certificate.lower_bound_s, still OPTIMAL",
        "a twentieth less",
        "certificate_is_consistent",
        put("certificate.lower_bound_s", times(0.95)),
    ),
    Forgery(
        "certificate.placement_dependent_s",
        "x 2",
        "objective_is_reproduced",
        put("certificate.placement_dependent_s", times(2.0)),
    ),
    Forgery(
        "certificate.num_candidates", "one more", "plan_is_searched", put("certificate.num_candidates", lambda n: n + 1)
    ),
    Forgery("certificate.num_pruned", "-1", "reader", put("certificate.num_pruned", -1)),
    Forgery("certificate.num_pruned", "one more", "proof_adds_up", put("certificate.num_pruned", lambda n: n + 1)),
    Forgery(
        "certificate.proof, by search",
        "a hundredth more",
        "proof_adds_up",
        part("search", "bound_s", times(1.01)),
    ),
    Forgery(
        "certificate.proof, by search",
        "one more",
        "proof_adds_up",
        part("search", "configurations", lambda n: n + 1),
    ),
    Forgery(
        "certificate.proof, by search", "one more of an engine", "proof_adds_up", named("search", "configurations")
    ),
    Forgery("certificate.proof, by search", "another example", "proof_adds_up", named("search", "example")),
    Forgery("certificate.proof, by search", "as illegal", "proof_adds_up", booked_under("legality rules")),
    Forgery("certificate.proof, by search", "as without a placement", "bound_holds", booked_under("no placement")),
    Forgery(
        "certificate.proof, by best links",
        "half the bound",
        "proof_adds_up",
        part("best links", "bound_s", times(0.5)),
    ),
    Forgery(
        "certificate.proof, by best links",
        "twice the bound",
        "bound_holds",
        part("best links", "bound_s", times(2.0)),
    ),
    Forgery("certificate.joint_model", "left out", "scope_is_reproduced", put("certificate.joint_model", None)),
    Forgery(
        "certificate.joint_model.bound_s",
        "half",
        "joint_model_bounds",
        put("certificate.joint_model.bound_s", times(0.5)),
    ),
    Forgery("certificate.joint_model.splits", "7", "joint_model_bounds", put("certificate.joint_model.splits", 7)),
    Forgery(
        "certificate.joint_model.status",
        "OPTIMAL",
        "reader",
        put("certificate.joint_model.status", "OPTIMAL"),
    ),
    Forgery("inputs.search.more_splits", "20, 12", "plan_is_searched", put("inputs.search.more_splits", [[20, 12]])),
    Forgery("certificate.proof, by best links", "by magic", "proof_adds_up", part("best links", "by", "magic")),
    Forgery(
        "certificate.searched.context_parallel",
        "1, 2",
        "scope_is_reproduced",
        put("certificate.searched.context_parallel", [1, 2]),
    ),
    Forgery("certificate.not_searched", "nothing", "scope_is_reproduced", put("certificate.not_searched", [])),
    Forgery("certificate.scope", "everything", "scope_is_reproduced", put("certificate.scope", "everything")),
    Forgery(
        "certificate.scope",
        "one sentence more",
        "scope_is_reproduced",
        put("certificate.scope", lambda text: f"Everything was searched. {text}"),
    ),
    Forgery("inputs.search.context_parallel", "free", "plan_is_searched", put("inputs.search.context_parallel", None)),
    Forgery("placement, worse hosts", "called OPTIMAL", "bound_holds", worse_hosts),
    Forgery("placement", "hosts exchanged", "estimate_is_reproduced", exchange_hosts),
    Forgery("placement.0.local_rank", "1", "one_rank_per_gpu", put("placement.0.local_rank", 1)),
    Forgery("placement.0.pp", "1", "nothing_else_is_said", put("placement.0.pp", 1)),
    Forgery("unused_hosts.0.host", "a used one", "hosts_exist", put("unused_hosts.0.host", "n2")),
    Forgery(
        "unused_hosts.0.reason",
        "it would cost 9 s",
        "unused_hosts_are_reproduced",
        put("unused_hosts.0.reason", "in place of n2 an iteration would take 9.00 % more"),
    ),
    Forgery("parallel.micro_batch_size", "2", "estimate_is_reproduced", put("parallel.micro_batch_size", 2)),
    Forgery(
        "parallel.layers_per_stage",
        "20, 12",
        "estimate_is_reproduced",
        several(put("parallel.layers_per_stage", [20, 12]), put("parallel.pipeline_model_parallel_layout", None)),
    ),
    Forgery("parallel.pipeline_model_parallel_layout", "other stages", "reader", put(LAYOUT, "Et|tL")),
    Forgery("parallel.pipeline_model_parallel_layout", "not text", "reader", put(LAYOUT, 2)),
    Forgery("inputs.search.more_layouts", "no layout", "reader", put("inputs.search.more_layouts", ["t|t"])),
    Forgery(
        "parallel.recompute_granularity", "full", "plan_is_searched", put("parallel.recompute_granularity", "full")
    ),
    Forgery("inputs.model.hidden_size", "2048", "estimate_is_reproduced", put("inputs.model.hidden_size", 2048)),
    Forgery("inputs.training.seq_length", "2048", "estimate_adds_up", put("inputs.training.seq_length", 2048)),
    Forgery(
        "inputs.training.global_batch_size",
        "64",
        "settings_are_the_given",
        put("inputs.training.global_batch_size", 64),
    ),
    Forgery("inputs.stack.matmul_speed", "0.9", "estimate_is_reproduced", put("inputs.stack.matmul_speed", 0.9)),
    Forgery("inputs.cluster.sha256", "another", "reader", put("inputs.cluster.sha256", "0" * 64)),
    Forgery("p2p", "async", "objective_is_reproduced", put("p2p", "async")),
    Forgery("nccl_algorithm", "magic", "settings_are_the_given", put("nccl_algorithm", "magic")),
    Forgery(
        "alternatives.0.iteration_time_s",
        "a tenth more",
        "alternatives_are_reproduced",
        put("alternatives.0.iteration_time_s", times(1.1)),
    ),
    Forgery(
        "alternatives.0.hosts", "one twice", "alternatives_are_reproduced", put("alternatives.0.hosts", ["n1", "n1"])
    ),
    Forgery(
        "alternatives.0.oom_probability",
        "0.5",
        "alternatives_are_reproduced",
        put("alternatives.0.oom_probability", 0.5),
    ),
    Forgery(
        "alternatives.0.reason",
        "99.0 % slower",
        "alternatives_are_reproduced",
        put("alternatives.0.reason", "99.0 % slower, most of it bubble (+9.00 %)"),
    ),
    Forgery(
        "alternatives.0.breakdown.compute",
        "half",
        "alternatives_are_reproduced",
        put("alternatives.0.breakdown.compute", times(0.5)),
    ),
    Forgery(
        "alternatives.0.parallel.recompute_granularity",
        "full",
        "plan_is_searched",
        put("alternatives.0.parallel.recompute_granularity", "full"),
    ),
    Forgery("notes", "certified", "notes_are_reproduced", put("notes", ["Certified by the vendor."])),
    Forgery("estimate.speedup", "5", "nothing_else_is_said", put("estimate.speedup", 5.0)),
    Forgery("memory.0.measured", "true", "nothing_else_is_said", put("memory.0.measured", True)),
    Forgery("certified_by", "somebody", "nothing_else_is_said", put("certified_by", "somebody")),
    Forgery("inputs.gpus", "another generation", "cluster_is_reproduced", put("inputs.gpus.a100-80gb", 90)),
    Forgery("estimate.iteration_time_s", "0", "reader", put("estimate.iteration_time_s", 0.0)),
    Forgery("estimate.breakdown.compute", "1e308", "reader", put("estimate.breakdown.compute", 1e308)),
    Forgery("memory.0.capacity_gib", "0", "reader", put("memory.0.capacity_gib", 0.0)),
    Forgery("memory.0.predicted_gib", "1e300", "reader", put("memory.0.predicted_gib", 1e300)),
    Forgery("joint_model.bound_s", "* 1.3", "joint_model_bounds", put("certificate.joint_model.bound_s", times(1.3))),
    Forgery("proof.0.named.0.name", "else", "proof_adds_up", put("certificate.proof.0.named.0.name", "else")),
    Forgery("less risk", "one dropped", "risks_are_reproduced", put("alternatives", lambda others: others[:-1])),
    Forgery("less risk, max_oom_risk", "0.013", "risks_are_reproduced", at_another_risk),
    Forgery("notes", "1 of 9 does not fit", "notes_are_reproduced", put("notes", ["1 of 9 candidates does not fit."])),
)
"""Each named by a rule; a forgery may break others besides."""

HARMLESS = (
    put("seed", 3),
    put("created", "2020-01-01T00:00:00+00:00"),
    put("versions", {}),
    put("certificate.wall_time_s", 1.5),
)
"""What no reader relies on."""


def solved(folder: Path) -> Path:
    """A plan file of a small cluster, solved as a user would."""
    from typer.testing import CliRunner

    from pipette_opt.cli.app import app

    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "links.csv").write_text(LINKS)
    plan = folder / "plan.json"
    given = {"CLUSTER": str(folder / "cluster.yaml"), "PLAN": str(plan)}
    result = CliRunner().invoke(app, [given.get(word, word) for word in SOLVE.split()])
    assert plan.is_file(), result.output
    return plan


def rules_that_break(plan: Path, change: Callable[[Content], None]) -> list[str]:
    """Names of the rules that a forged plan file breaks; ``reader`` if it is not read at all."""
    content = deepcopy(json.loads(plan.read_text()))
    change(content)
    forged = plan.with_name("forged.json")
    forged.write_text(json.dumps(content))
    try:
        check_file(forged)
    except PlanError as error:
        return list(dict.fromkeys(line.strip().split(":")[0] for line in str(error).splitlines()[1:]))
    except InputError:
        return ["reader"]
    return []


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as name:
        plan = solved(Path(name))
        print("| field | forged | rules that say so |\n|---|---|---|")
        for one in FORGERIES:
            print(f"| {one.field} | {one.value} | {', '.join(rules_that_break(plan, one.change)) or 'NONE'} |")
