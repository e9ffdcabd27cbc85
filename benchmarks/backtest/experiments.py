"""
Experiments of the back-test: rows of each source for the fit of a stack, and rows for its test.

The split is fixed here, before any prediction. Sources whose runs no equal layers describe are left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.backtest import ci_rows, titan_rows, vendor
from pipette_opt.read.runs import MeasuredRun

Runs = list[MeasuredRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """
    Experiment, one row of the page.

    Parameters
    ----------
    split
        Function that returns the runs to fit to and the runs to test on; without runs to fit to, the stack is shipped.
    why_bad
        Known causes of the remaining errors.
    target
        Wanted accuracy, as text.
    """

    name: str
    file: str
    split: Callable[[Runs], tuple[Runs, Runs]]
    why_bad: str
    target: str


def halves(runs: Sequence[MeasuredRun], seed: int = 0) -> tuple[Runs, Runs]:
    """Return a random half of the timed runs, and the other half."""
    runs = [run for run in runs if run.iter_time_s is not None]
    order = np.random.default_rng(seed).permutation(len(runs))
    middle = len(runs) // 2
    return [runs[i] for i in order[:middle]], [runs[i] for i in order[middle:]]


def korthikanti(runs: Runs) -> tuple[Runs, Runs]:
    """Return no runs to fit to, and all runs of Korthikanti et al."""
    return [], [run for run in runs if run.source.startswith("Korthikanti")]


def want(runs: Runs) -> tuple[Runs, Runs]:
    """Return the 13B runs, and the 30B runs on 256 GPUs."""
    return [run for run in runs if "13B" in run.model], [run for run in runs if "30B" in run.model]


def vtrain_one(runs: Runs) -> tuple[Runs, Runs]:
    """Return a random half of the runs on one host, and the other half."""
    return halves([run for run in runs if run.num_gpus <= run.gpus_per_node])


def vtrain_many(runs: Runs) -> tuple[Runs, Runs]:
    """Return half of the runs on one host and ten on several hosts; and the other runs on several hosts."""
    several = [run for run in runs if run.num_gpus > run.gpus_per_node and run.iter_time_s is not None]
    order = np.random.default_rng(0).permutation(len(several))
    chosen = {int(index) for index in order[:10]}
    rest = [run for index, run in enumerate(several) if index not in chosen]
    return vtrain_one(runs)[0] + [several[index] for index in sorted(chosen)], rest


def sweep(runs: Runs, *, clean: bool) -> tuple[Runs, Runs]:
    """
    Return the runs on up to 16 GPUs, and those on 32.

    ``clean`` leaves out runs from before the pipeline fix, and runs that also logged out of memory.
    """
    if clean:
        runs = [
            run for run in runs if run.launch.pipeline_model_parallel_size == 1 or run.cells["after_pp_fix"] == "True"
        ]
        runs = [run for run in runs if "oom_error" not in run.notes]
    return [run for run in runs if run.num_gpus <= 16], [run for run in runs if run.num_gpus > 16]


def amp(runs: Runs) -> tuple[Runs, Runs]:
    """Return a random half of the runs on the homogeneous cluster, and the other half."""
    return halves([run for run in runs if "homogeneous" in run.notes])


EXPERIMENTS = (
    Experiment(
        name="Korthikanti et al., shipped stack",
        file="published_tables.csv",
        split=korthikanti,
        why_bad="Four points; full recomputation of the 22B model is 4 % high",
        target="<= 3 %",
    ),
    Experiment(
        name="WANT: 13B on 32-128 GPUs, tested on 30B on 256",
        file="want_llama_a100.csv",
        split=want,
        why_bad="The 13B rows show the cause. In the later trials on 64 GPUs two stages lose as much time as five or "
        "six more micro-batches would take, also with half of the memory free, but not with 8,192 tokens. In "
        "the earlier trials jobs without a pipeline lose 5-12 %. Kernels differ between the trials, but no "
        "physical law explains the loss, so the one fitted stack lies between them. Near full memory most 30B "
        "runs lose 10 to 25 %, and one in four of the 13B runs. No term models that: the framework frees its "
        "gradients after each step, and the allocator returns blocks to the driver. A term with four "
        "constants for this source alone gave mean 7.4 %, p90 15.7 %, rank 0.865, worst regret 25.0 % and "
        "three good picks of four; without it these are 7.5 %, 18.9 %, 0.839, 17.9 % and none",
        target="<= 8 %, regret <= 2 %, rank >= 0.95",
    ),
    Experiment(
        name="vTrain, one host: half and half",
        file="vtrain_a100.csv",
        split=vtrain_one,
        why_bad="Host-bound: with tensor groups a layer takes 2.7 to 4.9 ms, the same for all depths and pipelines, "
        "but depends on size and micro-batch in no order that a formula gives. So factors of 32 shapes of "
        "layers are fitted, which depths, pipelines, batches and numbers of GPUs share. Shapes outside the "
        "fit are less accurate: fitted to hidden size 1024 and tested on 2048 the error is 6.9 % (7.7 % "
        "without factors), fitted to 2-4 GPUs and tested on 8 it is 5.0 % (7.4 %). The scales of the factors "
        "were chosen by these two tests. The test half had been inspected before, shape by shape",
        target="<= 6 %",
    ),
    Experiment(
        name="vTrain, 64-256 GPUs, from one host and ten runs",
        file="vtrain_a100.csv",
        split=vtrain_many,
        why_bad="Tensor groups of 8 with very large or small micro-batches",
        target="<= 9 %",
    ),
    Experiment(
        name="H100 sweep: up to 16 GPUs, tested on 32, usable rows",
        file="hf_ultrascale_h100.csv",
        split=partial(sweep, clean=True),
        why_bad="Tensor groups over four hosts with large messages fall to a tenth of the bandwidth, and the fitted "
        "runs have two hosts at most; two runs lose 1.2 s in every micro-batch for an unknown reason. That "
        "groups over two hosts in a pipeline wait for four more threads was found on the test rows, as no "
        "other rows have such groups; no constant is fitted to them",
        target="<= 12 %, regret <= 5 %",
    ),
    Experiment(
        name="H100 sweep: up to 16 GPUs, tested on 32, every row",
        file="hf_ultrascale_h100.csv",
        split=partial(sweep, clean=False),
        why_bad="Runs with nearly full memory, and runs without ZeRO from before the source's pipeline fix, lose "
        "0.5-1.2 s in every micro-batch. No term models that, as no run of other software shows it. With a "
        "constant for the rows that the source marks as broken the mean was 9.1 %; the mean of usable rows is "
        "8.7 % with and without it",
        target="<= 12 %, regret <= 5 %",
    ),
    Experiment(
        name="AMP, homogeneous T4 cluster: half and half",
        file="amp_aws16.csv",
        split=amp,
        why_bad="PCIe and the network of the cloud are not measured; layers are split at the boundaries that AMP "
        "records",
        target="rank above AMP's own",
    ),
    Experiment(
        name="GPT-OSS 120B (mixture of experts), 64 GPUs, shipped stack",
        file="nvidia_perf_tables.csv",
        split=vendor.gpt_oss,
        why_bad="A vendor's figures; several releases have the same configuration. No constant is fitted; hosts have "
        "eight links of 400 Gbit/s (DGX H100 and B200, datasheets), 64 GB200 or GB300 share one fabric; and "
        "options that the rows do not name (recomputation, overlap) are taken as off. All runs are predicted "
        "a quarter to a half too fast: layers take longer than the modelled matrix products and memory "
        "traffic, about twice as long on H100. The vendor's recipes (NVIDIA-NeMo/Megatron-Bridge, "
        "scripts/performance/configs/gpt_oss) recompute norms and the experts' activations on H100, B200 and "
        "GB200, replay graphs on B300 and GB300, and mostly exchange tokens without overlap; the activation "
        "is clamped and attention has sinks. No model here has these, and nobody measured the cost of each. "
        "Rows in 8 bits, with other attention (MLA) or with layers that do not divide are left out",
        target="",
    ),
    Experiment(
        name="MLPerf: GPT-3 175B on 64-768 H100 and B200, tested on Llama 3.1 405B, H100, H200 and GB200",
        file="mlperf_training.csv",
        split=vendor.mlperf,
        why_bad="H100 is predicted 16-17 % too slow, H200 5 % too fast to 7 % too slow, GB200 27-29 % too fast. The "
        "fitted runs have one model, one tensor and pipeline size, and three rows on the newer chips. The "
        "same job took 9 % less a round later, and micro-batches of two took less than those of one. The fit "
        "explains that by waits of the hosts; on the larger layers of the tested model these waits hide on "
        "GB200 but not on H100, where each tensor group has eight ranks. A fit without such waits would be "
        "nearer, but only the test rows show that, so it is not used. Options that the rows do not name "
        "(overlap of tensor communication, graphs, attention in 8 bits) are taken as off",
        target="",
    ),
    Experiment(
        name="Vendor's tables: dense models up to 175B, tested on Llama 3.1 405B",
        file="nvidia_perf_tables.csv",
        split=vendor.dense,
        why_bad="Tuned runs, one for each model and GPU, of seven releases. In 8 bits they are predicted 10 % too "
        "fast to 20 % too slow. In 16 bits, where the fit has four rows, they are predicted 14 % too fast "
        "(GB200) to 30 % too slow (H100). The fit gives two constants values that hardware cannot have, the "
        "whole peak for products in 16 bits and three times the nominal links of a host, because the recipes "
        "hide communication that the rows do not name. Shards of the optimizer, gradients and parameters "
        "(FSDP) are in the fit and within 5 % but for one row. Rows in 4 bits are left out",
        target="",
    ),
    Experiment(
        name="Vendor's tables: mixtures on 8-64 GPUs, tested on Qwen3 235B on 256",
        file="nvidia_perf_tables.csv",
        split=vendor.experts,
        why_bad="The tested model takes a quarter to a third less time in the two newest releases than two releases "
        "earlier with the same layout (GB200 17.8 and 23.1 s). The fit has no term for releases and lies "
        "between: runs of the newest are predicted 40-66 % too slow, the others 12 % too fast to 38 % too "
        "slow, on H100 2-9 %. Constants come from GPT-OSS, whose layers take longer than the modelled work "
        "(its own section), and from runs on one host; recomputation, graphs and overlap of exchanges with "
        "work are not in the rows. Other mixtures of the tables have latent attention (DeepSeek, Kimi) or "
        "state spaces (Nemotron), which no model here has",
        target="",
    ),
    Experiment(
        name="Megatron-LM's functional tests, 12 layers: half of the layouts, tested on the others",
        file="megatron_ci_golden.csv",
        split=ci_rows.small_models,
        why_bad="Not a measure of performance: tests of a model 512 wide in deterministic mode, where the host decides "
        "nearly everything (a layer's launches are fitted as 0.1 ms for each kernel). Runs of one layout, batch and "
        "version of the software differ by 6.0 % from their mean (p90 14.6 %, the farthest by 67 %), as tests add "
        "things that layouts do not show (loading a checkpoint, norms of parameters, another loss). Worst are "
        "deterministic kernels under fused attention with context parallelism (35 % too fast) and four tensor ranks in "
        "two stages (up to 31 % too slow). Left out: Megatron's FSDP, latent attention, stages whose layers the row "
        "does not tell, and five micro-batches interleaved over four stages, which the schedule here does not have",
        target="",
    ),
    Experiment(
        name="Megatron-LM's functional tests, 7B, shipped stack",
        file="megatron_ci_golden.csv",
        split=ci_rows.large_models,
        why_bad="Two runs, 16 and 20 % too fast; they are in deterministic mode and add gradients up outside the "
        "products, neither of which the shipped stack has, and what that costs nobody measured. The three rows of 15B "
        "tell no batch; by their configuration (NVIDIA/Megatron-LM, tests/functional_tests/test_cases/gpt/"
        "gpt3_15b_8t_release) it starts at 384 sequences, which eight GPUs, as the source assumes, cannot do in 3.4 s",
        target="",
    ),
    Experiment(
        name="torchtitan (FSDP): 8B on 8 GPUs, tested on 32 and 64",
        file="published_tables.csv",
        split=titan_rows.more_gpus,
        why_bad="Four runs. Sharded data parallelism on 32 and 64 H200 is within 2.7 %, though the fit saw one host of "
        "H100 only. With eight tensor ranks and 64 GPUs 27 % (bf16) and 33 % (fp8) too fast: no fitted run has tensor "
        "ranks, so what such groups cost there is the shipped stack's, a tuned Megatron-Core's, and the source's own "
        "figures of asynchronous tensor parallelism say that 9 % can be won. Its selective recomputation, by operators "
        "or every other layer, is not Megatron's, so the fit puts the difference into other constants. Among the "
        "fitted runs the one of 65,536 tokens over two context ranks is 18 % too slow",
        target="",
    ),
)
