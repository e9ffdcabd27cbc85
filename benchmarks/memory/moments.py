"""
Network that learns the working memory of a pass as a smooth maximum over moments.

Each moment is a linear combination of tensor sizes. Its coefficients depend on the options of the stage, through one
hidden layer. So the network has the form of the formula that it replaces, and only the numbers are learnt.
"""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.memory.formula import FormulaBytes
from pipette_opt.memory.stage_rows import StageTable

Matrices = tuple[FloatArray, ...]
"""Matrix of each part of a stage: layers, head, embeddings."""


def tensor_bytes(table: StageTable, formula: FormulaBytes) -> Matrices:
    """
    Return the sizes in bytes of the tensors that a pass may have at work, by part, shapes ``(num_rows, num_tensors)``.

    Sizes of a layer's tensors are also given times the layers that one recomputation restores. The last matrix has one
    column: what the optimizer step, a moment without activations, takes beyond them.
    """
    e, tokens, shard = table.element, table.tokens, table.tokens / table.shards
    has_layers, dense, moe = table.layers > 0, table.layers > table.moe_layers, table.moe_layers > 0
    rows = moe * shard * table.topk
    here = rows * table.expert_tensor
    expert_down = (
        table.expert_up * table.down / table.up
    )  # as much narrower as in a dense MLP: both have a gate or none
    ring = (table.context > 1) * table.context
    hidden, piece, norm = e * tokens * table.hidden, e * shard * table.hidden, 4 * shard * table.statistics
    waiting = (table.zero < 2) * e * table.shared_table
    whole, placeholders = formula.saved / table.in_flight, (table.zero < 2) * e * table.placeholders
    of_layer = (
        *(hidden, piece, norm),
        *(dense * e * tokens * width for width in (table.up, table.down)),
        *(has_layers * e * tokens * width for width in (table.query, table.key_value)),
        *(has_layers * 4 * tokens * table.heads, has_layers * e * table.scores),
        *(e * rows * table.routed, e * here * table.routed, e * here * table.expert_up, e * here * expert_down),
        *(moe * 4 * shard * table.num_experts, moe * e * tokens * table.shared_up),
    )
    again = (table.brought_back * size for size in of_layer)
    around = (e * tokens * table.key_value, e * tokens * table.query, 4 * tokens * table.heads)
    layers = (*of_layer, *again, *(ring * size for size in around), waiting, whole, placeholders)
    logits, table_bytes, scores = tokens * table.vocab, e * table.largest_table, e * table.scores
    head = (4 * logits, e * logits, e * table.hidden * table.vocab, hidden, piece, norm, waiting, placeholders, scores)
    masks = table.hidden_dropout * shard * table.hidden
    first = (table_bytes, hidden, piece, masks, waiting, table.first_chunk * whole, whole, placeholders, scores)
    is_there = (table.layers > 0, table.last, table.first)
    parts = zip(is_there, (layers, head, first), strict=True)
    step = formula.step_work - formula.saved  # activations are freed before the step
    return (*(np.stack([here * size for size in sizes], axis=1) for here, sizes in parts), step[:, None])


def options_of(table: StageTable) -> Matrices:
    """Return the options that matter to each part, as flags and logs, shapes ``(num_rows, num_options)``."""
    moe = table.moe_layers > 0
    common = (table.shards > 1, table.tensor > 1, table.zero >= 2, table.element == 4, np.log2(table.tensor))
    layers = (
        *(table.layers > 0, table.layers > table.moe_layers, moe, table.context > 1, np.log2(table.context)),
        *(table.selective, table.full, table.full > 0, table.brought_back == 1, np.log2(1 + table.brought_back)),
        *(moe & (table.expert_ranks > 1), moe & (table.local_experts > 1), moe & (table.expert_tensor > 1)),
        *(table.shared_up > 0, table.scores == 0, table.grouped, table.up > table.down, table.fp8 > 0),
        *(table.hidden_dropout, table.attention_dropout, table.rope, table.qk_norm, np.log2(table.in_flight)),
    )
    head = (table.full > 0, table.shared_table > 0, np.log2(table.in_flight))
    first = (table.full > 0, table.hidden_dropout, table.interleaved, np.log2(table.in_flight))
    return tuple(
        np.stack([np.asarray(option, dtype=np.float64) for option in (*common, *own)], axis=1)
        for own in (layers, head, first)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentParams:
    """Size and training of the network: AdamW on random batches, one cycle of the learning rate. Chosen."""

    moments: int = 8
    hidden: int = 12
    steps: int = 6000
    batch: int = 400
    learning_rate: float = 1e-2
    sparsity: float = 1e-6
    members: int = 1

    def moments_of(self, part: int) -> int:
        """Return the number of moments of layers (0), head (1) and embeddings (2)."""
        return self.moments if part == 0 else self.moments // 2


TEMPERATURE, BETA = 0.003, 0.003
"""Width of the smooth maximum, as a fraction of the formula; error of the log above which the loss is linear."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MomentNetwork:
    """
    Trained networks of one size, of which predictions are averaged.

    Parameters
    ----------
    centres, scales
        Scaling of the options of each part, shape ``(num_options,)``.
    members
        Weights of each part in each network: options to hidden units, their bias, and the coefficients of the tensors
        for each hidden unit (and a first unit that is always 1) and moment.
    log_ratio_range
        Range of ``log(peak / formula)`` in training; predictions are clipped to this range.
    """

    centres: Matrices
    scales: Matrices
    members: tuple[tuple[Matrices, ...], ...]
    log_ratio_range: tuple[float, float]

    def log_ratio(self, shares: Matrices, options: Matrices) -> FloatArray:
        """Predict ``log(peak / formula)``, with ``shares`` of tensors in the formula, shape ``(num_rows,)``."""
        scaled = _scaled(options, self.centres, self.scales)
        logs = [self._member(member, shares, scaled) for member in self.members]
        mean: FloatArray = np.mean(logs, axis=0)
        return np.clip(mean, *self.log_ratio_range)

    def _member(self, weights: tuple[Matrices, ...], shares: Matrices, scaled: Matrices) -> FloatArray:
        moments = [np.zeros((len(shares[0]), 1)), shares[-1]]
        for (into, bias, coefficients), sizes, given in zip(weights, shares[:-1], scaled, strict=True):
            units = np.column_stack([np.ones(len(given)), np.tanh(given @ into.T + bias)])
            moments.append(np.einsum("rh,hmt,rt->rm", units, coefficients, sizes, optimize=True))
        work: FloatArray = TEMPERATURE * np.logaddexp.reduce(np.column_stack(moments) / TEMPERATURE, axis=1)
        logs: FloatArray = np.log1p(work)
        return logs


def _scaled(options: Matrices, centres: Matrices, scales: Matrices) -> Matrices:
    return tuple(
        np.clip((given - centre) / scale, -5, 5) for given, centre, scale in zip(options, centres, scales, strict=True)
    )


def train_moments(
    shares: Matrices, options: Matrices, log_ratio: FloatArray, rows: IntArray, params: MomentParams, seed: int = 0
) -> MomentNetwork:
    """Return networks trained on ``rows`` to predict ``log(peak / formula)``."""
    centres = tuple(given[rows].mean(axis=0) for given in options)
    deviations = [given[rows].std(axis=0) for given in options]
    scales = tuple(np.where(deviation > 1e-9, deviation, 1.0) for deviation in deviations)
    scaled = _scaled(tuple(given[rows] for given in options), centres, scales)
    members = tuple(
        _train_member(tuple(sizes[rows] for sizes in shares), scaled, log_ratio[rows], params, seed * 100 + member)
        for member in range(params.members)
    )
    limits = float(log_ratio[rows].min()), float(log_ratio[rows].max())
    return MomentNetwork(centres=centres, scales=scales, members=members, log_ratio_range=limits)


def _train_member(
    shares: Matrices, options: Matrices, log_ratio: FloatArray, params: MomentParams, seed: int
) -> tuple[Matrices, ...]:
    import torch

    torch.manual_seed(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the network is too small to share
    sizes, given = ([torch.tensor(part, dtype=torch.float32) for part in parts] for parts in (shares, options))
    wanted = torch.tensor(log_ratio, dtype=torch.float32)
    weights = []
    for part, (tensors, flags) in enumerate(zip(sizes[:-1], given, strict=True)):
        linear = torch.nn.Linear(flags.shape[1], params.hidden)
        start = 0.02 * torch.randn(1 + params.hidden, params.moments_of(part), tensors.shape[1])
        start[0] *= 5
        weights.append((linear.weight, linear.bias, torch.nn.Parameter(start)))
    optimizer = torch.optim.AdamW(
        [weight for part in weights for weight in part], lr=params.learning_rate, weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, params.learning_rate, total_steps=params.steps, pct_start=0.05
    )
    loss_of = torch.nn.SmoothL1Loss(beta=BETA)
    for _ in range(params.steps):
        batch = torch.randint(len(wanted), (params.batch,))
        moments, size = [torch.zeros(params.batch, 1), sizes[-1][batch]], torch.zeros(())
        for (into, bias, coefficients), tensors, flags in zip(weights, sizes[:-1], given, strict=True):
            units = torch.tanh(torch.nn.functional.linear(flags[batch], into, bias))
            units = torch.nn.functional.pad(units, (1, 0), value=1.0)
            products = tensors[batch] @ coefficients.flatten(0, 1).T
            moments.append((products.view(params.batch, *coefficients.shape[:2]) * units[:, :, None]).sum(dim=1))
            size = size + coefficients[1:].abs().sum() + 0.1 * coefficients[0].abs().sum()
        work = TEMPERATURE * torch.logsumexp(torch.cat(moments, dim=1) / TEMPERATURE, dim=1)
        optimizer.zero_grad()
        (loss_of(torch.log1p(work), wanted[batch]) + params.sparsity * size).backward()
        optimizer.step()
        schedule.step()
    torch.set_num_threads(threads)
    return tuple(tuple(weight.detach().numpy().astype(np.float64) for weight in part) for part in weights)
