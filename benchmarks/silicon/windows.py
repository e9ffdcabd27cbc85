"""
Error of the whole-sequence attention law on measured kernels with a window: ``python -m benchmarks.silicon.windows``.

No constant is fitted: the law of ``costs/attention.py`` has the tokens that a query sees. Rows are causal, in bf16,
with the kernels and sizes that the law was fitted to, and windows shorter than the sequence.
"""

import numpy as np

from benchmarks.silicon.tables import windows
from pipette_opt.read.gpus import read_gpu

ELEMENT = 2
"""Bytes of a bf16 element."""


def main() -> None:
    """Print a line for each GPU and window: predicted over measured time, 10th, 50th and 90th percentile."""
    for name in ("h100-80gb", "b200", "gb200"):
        gpu, rows = read_gpu(name), windows(name)
        law = gpu.efficiency.attention
        for window, of_window in rows.groupby("window"):
            tokens, queries = of_window.batch * of_window.seq, of_window.heads * of_window.head_dim
            seen = window * (1 - window / (2 * of_window.seq))
            rate = gpu.peak_flops["bf16"] * np.array([law.share(size) for size in of_window.head_dim])
            compute = 4 * tokens * queries * seen * (1 + law.half_seq / (2 * seen)) / rate
            moved = 2 * ELEMENT * tokens * (queries + of_window.kv_heads * of_window.head_dim)
            ratio = (law.start_s + compute + moved / gpu.memory_bytes_per_s) / (of_window.latency_us * 1e-6)
            low, middle, high = ratio.quantile([0.1, 0.5, 0.9])
            print(f"{name:10} window {window:5}: {len(of_window):5} rows: {low:.2f} {middle:.2f} {high:.2f}")


if __name__ == "__main__":
    main()
