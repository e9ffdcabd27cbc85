"""
Error of the ordinary attention law on measured kernels of latent attention: ``python -m benchmarks.silicon.latent``.

No constant is fitted: the law of ``costs/attention.py`` has the rate of heads as wide as the values. Rows have
DeepSeek-V3's sizes (keys of 192 channels, values of 128), bf16, and sequences of 2,048 tokens and more that fill the
GPU.
"""

import pandas as pd

from benchmarks.silicon.tables import folder
from pipette_opt.read.gpus import read_gpu

KEYS, VALUES, ELEMENT = 192, 128, 2
"""Channels of a head's keys and values, and bytes of a bf16 element."""

MIN_SEQUENCE, MIN_ROWS = 2048, 2**17
"""Minimum tokens of a sequence, and minimum product of batch, tokens and heads. Chosen."""


def main() -> None:
    """Print a line for each GPU and framework: predicted over measured time, 10th, 50th and 90th percentile."""
    for name in ("a100-80gb", "h100-80gb", "b200", "gb200"):
        gpu = read_gpu(name)
        law, rows = gpu.efficiency.attention, pd.read_csv(folder() / f"mla_{name}.csv.gz")
        plain = (rows.form == "plain") & (rows.dtype == "bf16") & (rows.suspect == 0) & (rows.sustained == 0)
        large = (rows.seq >= MIN_SEQUENCE) & (rows.batch * rows.seq * rows.heads >= MIN_ROWS)
        for framework, of_framework in rows[plain & large].groupby("framework"):
            pairs = of_framework.batch * of_framework.heads * of_framework.seq * (of_framework.seq + 1) / 2
            compute = 2 * (KEYS + VALUES) * pairs * (1 + law.half_seq / of_framework.seq)
            moved = 2 * ELEMENT * (KEYS + VALUES) * of_framework.batch * of_framework.heads * of_framework.seq
            seconds = law.start_s + compute / (gpu.peak_flops["bf16"] * law.share(VALUES))
            ratio = (seconds + moved / gpu.memory_bytes_per_s) / (of_framework.latency_us * 1e-6)
            low, middle, high = ratio.quantile([0.1, 0.5, 0.9])
            print(f"{name:10} {framework:7} {len(of_framework):4} rows: {low:.2f} {middle:.2f} {high:.2f}")


if __name__ == "__main__":
    main()
