"""The user's degrees and host order as they are today, judged like a plan."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipette_opt.cli.options import Job
from pipette_opt.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pipette_opt.parallel import ParallelConfig, Placement
    from pipette_opt.parallel.schedule import Schedule
    from pipette_opt.plan import IterationTime, Plan, StageMemory
    from pipette_opt.specs import Instance
    from pipette_opt.types import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Current:
    """
    What runs today, and the judge's answer.

    Parameters
    ----------
    instance
        The job as the launch trains it.
    max_oom_risk
        Accepted risk of running out of memory.
    """

    instance: "Instance"
    config: "ParallelConfig"
    placement: "Placement"
    hosts: tuple[str, ...]
    estimate: "IterationTime"
    memory: "tuple[StageMemory, ...]"
    schedule: "Schedule | None" = None
    max_oom_risk: float | None = None

    def tables(self, plan: "Plan | None" = None) -> list["RenderableType"]:
        """The estimate, beside a plan if there is one."""
        from pipette_opt.report.tables import estimate_tables, notes

        parts = estimate_tables(
            self.config,
            self.estimate,
            self.memory,
            hosts=self.hosts,
            plan=plan,
            title="your current launch",
            max_oom_risk=self.max_oom_risk,
            links_measured=self.instance.cluster.links_measured,
        )
        if self.schedule is not None:
            from pipette_opt.parallel.schedule import max_in_flight

            held = " ".join(str(count) for count in max_in_flight(self.schedule).tolist())
            parts.insert(-2, f"Activations that the stages hold at most, of one chunk and micro-batch each: {held}")
        if plan is None and self.instance.cluster.assumed:
            parts.insert(-2, notes(self.instance.cluster.assumed))
        return parts

    @property
    def host_order(self) -> tuple[int, ...]:
        """Hosts by index: those that run today in their order, then the others as listed."""
        known = self.instance.cluster.hosts
        used = [known.index(host) for host in dict.fromkeys(self.hosts) if host in known]
        return (*used, *(index for index in range(len(known)) if index not in used))

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        from dataclasses import asdict

        from pipette_opt.report.plan_file import estimate_to_dict
        from pipette_opt.report.verdict import verdict

        return {
            "verdict": verdict(
                self.memory,
                self.estimate,
                max_oom_risk=self.max_oom_risk,
                links_measured=self.instance.cluster.links_measured,
            ),
            "parallel": asdict(self.config),
            "hosts": list(self.hosts),
            "rank_order": self.placement.order,
            "estimate": estimate_to_dict(self.estimate),
            "memory": [asdict(stage) for stage in self.memory],
            "notes": list(self.instance.cluster.assumed),
            **self._schedule_dict(),
        }

    def _schedule_dict(self) -> dict[str, Any]:
        if self.schedule is None:
            return {}
        from pipette_opt.parallel.schedule import max_in_flight

        stages = self.schedule.text().splitlines()
        held = max_in_flight(self.schedule).tolist()
        return {"schedule": {"stages": stages, "layout": self.schedule.layout, "max_in_flight": held}}


def current_of(job: Job, arguments: str, hosts: str | None, max_oom_risk: float = 0.01) -> Current:
    """
    Judge Megatron arguments on hosts in the given order.

    Parameters
    ----------
    arguments
        Megatron's command-line arguments, or a file that has them.
    hosts
        Names or ranges; the cluster's order by default. Ranks fill them one after the other.
    """
    from dataclasses import replace
    from pathlib import Path

    from pipette_opt.candidates import check_legal
    from pipette_opt.estimator.estimate import estimate
    from pipette_opt.fullness import with_edge_loss
    from pipette_opt.judge import stage_memory
    from pipette_opt.parallel import identity_placement
    from pipette_opt.prepare import load_predictor
    from pipette_opt.read.bands import with_band
    from pipette_opt.read.files import read_text
    from pipette_opt.read.megatron_args import parse_megatron_args

    where = "the current arguments"
    one_word = not arguments.lstrip().startswith("-") and len(arguments.split()) == 1
    if one_word or (not arguments.lstrip().startswith("-") and Path(arguments).is_file()):
        where, arguments = arguments.strip(), read_text(arguments.strip())
    if not arguments.strip():
        raise InputError(where, "are empty; give Megatron's options, e.g. --tensor-model-parallel-size 8.")
    given = parse_megatron_args(arguments, where)
    if given.precision not in (None, job.instance.training.precision):
        raise InputError(
            where, f"train in {given.precision}, the job in {job.instance.training.precision}; compare equal formats."
        )
    if given.fp8 != job.instance.training.fp8 and (given.fp8 or given.precision is not None):
        unlike = (
            "have --fp8-format; give --fp8, too" if given.fp8 else "have no --fp8-format; leave --fp8 out, or add it"
        )
        raise InputError(where, f"{unlike}: compared are equal formats.")
    instance = job.instance
    nodes = _nodes(job, hosts)
    per_node = instance.cluster.gpus_per_node
    num_gpus = job.num_gpus or len(nodes) * per_node
    config = given.parallel_config(instance.model.num_layers, num_gpus)
    if given.global_batch_size not in (None, instance.training.global_batch_size):
        raise InputError(
            where,
            f"--global-batch-size {given.global_batch_size} differs from the job's "
            f"{instance.training.global_batch_size}; compare equal batches.",
        )
    if given.seq_length not in (None, instance.training.seq_length):
        raise InputError(
            where,
            f"--seq-length {given.seq_length} differs from the job's {instance.training.seq_length}; compare equal "
            "sequences.",
        )
    for field in ("num_layers", "hidden_size") if given.model is not None else ():
        theirs, ours = getattr(given.model, field), getattr(instance.model, field)
        if theirs != ours:
            option = f"--{field.replace('_', '-')}"
            raise InputError(where, f"{option} {theirs} differs from the job's {ours}; compare equal models.")
    for field, theirs in given.expert_fields.items():
        ours = instance.model.expert_ffn_size if field == "moe_ffn_hidden_size" else getattr(instance.model, field)
        if theirs != (ours if instance.model.num_experts is not None else None):
            option, dense = f"--{field.replace('_', '-')} {theirs}", instance.model.num_experts is None
            said = "the job's model has no experts" if dense else f"the job has {ours}"
            raise InputError(where, f"{option}, but {said}; compare equal models.")
    if given.model is not None and given.model.num_moe_layers != instance.model.num_moe_layers:
        raise InputError(
            where,
            f"{given.model.num_moe_layers} layers with experts, but the job has {instance.model.num_moe_layers}; "
            "compare equal models.",
        )
    if instance.model.num_experts is not None:
        dispatched = replace(instance.training, moe_token_dispatcher_type=given.moe_token_dispatcher_type)
        instance = with_edge_loss(replace(instance, training=dispatched))
    reasons = check_legal(instance.model, instance.training, config)
    if reasons:
        raise InputError(where, f"{config.label()} cannot run on {num_gpus} GPUs: {'; '.join(reasons)}.")
    if num_gpus > len(nodes) * per_node:
        raise InputError(where, f"{num_gpus} GPUs need more than the {len(nodes)} hosts of {per_node} GPUs given.")
    nodes = nodes[: -(-num_gpus // per_node)]
    placement = identity_placement(config, per_node, nodes, given.rank_order)
    return Current(
        instance=instance,
        config=config,
        placement=placement,
        hosts=tuple(instance.cluster.hosts[node] for node in nodes),
        estimate=with_band(estimate(instance, config, placement), instance, config),
        memory=stage_memory(instance, config, placement, load_predictor(max_oom_risk, instance), max_oom_risk),
        max_oom_risk=max_oom_risk,
    )


def _nodes(job: Job, hosts: str | None) -> "IntArray":
    from pipette_opt.read.hosts import expand_hosts
    from pipette_opt.specs.host_names import compress_hosts

    known = job.instance.cluster.hosts
    if hosts is None:
        return np.arange(len(known))
    names = expand_hosts(hosts, "host order")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError("host order", f"{compress_hosts(tuple(unknown))} not in cluster {job.instance.cluster.name}.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError("host order", f"{compress_hosts(tuple(repeated))} more than once.")
    return np.array([known.index(name) for name in names], dtype=np.int64)
