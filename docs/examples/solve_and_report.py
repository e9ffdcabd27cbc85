"""
Plan a job with the library: solve, look, write the plan and its page.

``python docs/examples/solve_and_report.py`` takes a few seconds and leaves ``plan.json`` and ``report.html`` here.
"""

import pipette_opt as po


def main() -> None:
    """Two hosts of eight A100 each, whose links were measured; llama-3-8b, 64 sequences of 4,096 tokens."""
    plan = po.solve(example="lab-2x8", time_limit_s=10, gap_limit=0.05)
    print(plan.verdict)
    print(plan.time_table())
    print(plan.stage_table()[["layers", "predicted_gib", "at_most_gib", "capacity_gib"]])
    print(plan.alternative_table()[["iteration_time_s", "share"]])

    # Another job on the same machines: a model by name, fewer configurations, each tensor group on two GPUs.
    tensor_2 = po.SearchSpace(tensor_parallel=(2,))
    other = po.solve(example="lab-2x8", space=tensor_2, time_limit_s=10, gap_limit=0.05)
    print(f"tensor parallel 2: {other.estimate.iteration_time_s / plan.estimate.iteration_time_s - 1:+.1%}")

    po.write_plan(plan, "plan.json")
    po.write_report(plan, "report.html")


if __name__ == "__main__":
    main()
