"""Tables of the README from the records of its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pipette_milp.experiments.engine import DONE
from pipette_milp.experiments.log import Record
from pipette_milp.experiments.race import TIMES_S, TOLERANCE, best_at, reached_s
from pipette_milp.experiments.statistics import median, per_sequence_s
from pipette_milp.experiments.tables import Table, conditions, percent, seconds
from pipette_milp.schema.plan import Configuration


def proof_table(records: Sequence[Record]) -> str:
    """Markdown: the plan of each instance, and how good it is proven to be."""
    table = Table(["instance", "plan found", "iteration", "default order", "proven gap", "time"])
    for record in records:
        if record["status"] != DONE or record["plan"] is None:
            table.add(record["instance"], record.get("error") or record["termination"], *[None] * 4)
            continue
        configuration = Configuration.model_validate(record["plan"]["configuration"])
        gap = math.inf if record["gap"] is None else record["gap"]
        table.add(
            record["instance"],
            degrees(configuration),
            f"{record['simulated_s']:.3f} s",
            None if record["default_order_s"] is None else f"{record['default_order_s']:.3f} s",
            percent(gap),
            seconds(record["solve_wall_s"]),
        )
    return f"{conditions(records)}\n\n{table.markdown()}"


def degrees(configuration: Configuration) -> str:
    """``p4 t2 d16 b1``."""
    c = configuration
    return f"p{c.pipeline} t{c.tensor} d{c.data} b{c.micro_batch}"


# ------------------------------------------------------------------ published methods
def baseline_tables(records: Sequence[Record], best: Sequence[Record]) -> str:
    """Markdown: one row for each method over all instances, and one for each method and instance."""
    ours = {record["instance_sha256"]: per_sequence_s(record) for record in best}
    summary = Table(
        [
            "method",
            "first choice runs out of memory",
            "of the ten first",
            "first that fits, slower than ours: median",
            "worst",
            "best of the ten, slower: median",
            "own prediction off by: median",
        ]
    )
    detail = Table(
        ["instance", "method", "first choice that fits", "simulated", "slower than ours", "tried before"]
    )
    methods = list(dict.fromkeys(record["method"] for record in records))
    for method in methods:
        runs = [record for record in records if record["method"] == method and record["status"] == DONE]
        firsts = [record["choices"][:1] for record in runs]
        failed = sum(not choice["fits"] for choices in firsts for choice in choices)
        listed = [choice for record in runs for choice in record["choices"]]
        behind = [slower(record, ours, first_that_fits) for record in runs]
        summary.add(
            method,
            f"{failed} of {len(runs)}",
            f"{sum(not choice['fits'] for choice in listed)} of {len(listed)}",
            percent(median(behind), 1),
            percent(max(behind, default=math.inf), 1),
            percent(median([slower(record, ours, best_that_fits) for record in runs]), 1),
            percent(median([error for record in runs for error in prediction_errors(record)]), 0),
        )
    for record in records:
        if record["status"] != DONE:
            detail.add(record["instance"], record["method"], record["error"], None, None, None)
            continue
        choice = first_that_fits(record)
        index = None if choice is None else record["choices"].index(choice)
        detail.add(
            record["instance"],
            record["method"],
            None if choice is None else choice["family"],
            None if choice is None else f"{choice['simulated_s']:.3f} s",
            percent(slower(record, ours, first_that_fits), 1),
            index,
        )
    return f"{summary.markdown()}\n{detail.markdown()}"


def first_that_fits(record: Record) -> Record | None:
    """The choice a user of the method would end with."""
    return next((choice for choice in record["choices"] if choice["fits"]), None)


def best_that_fits(record: Record) -> Record | None:
    """The best a user could find by trying all of them."""
    fitting = [choice for choice in record["choices"] if choice["fits"]]
    return min(fitting, key=per_sequence_s, default=None)


def slower(record: Record, ours: dict[str, float], pick: Callable[[Record], Record | None]) -> float:
    """By what share a choice is slower than our plan; inf without one."""
    choice = pick(record)
    return math.inf if choice is None else per_sequence_s(choice) / ours[record["instance_sha256"]] - 1


def prediction_errors(record: Record) -> list[float]:
    """Relative distance of the method's own time from the simulated one, for each choice that has one."""
    return [
        abs(choice["predicted_s"] / choice["simulated_s"] - 1)
        for choice in record["choices"]
        if choice["predicted_s"] is not None
    ]


def race_table(records: Sequence[Record]) -> str:
    """Markdown: medians of both at each time, the worst ratio, and when ours had what annealing ends with."""
    last = max((record["time_limit_s"] for record in records), default=TIMES_S[-1])
    times_s = sorted({*(time_s for time_s in TIMES_S if time_s < last), last})
    headings = ["instance", "configuration", "seeds"]
    for time_s in times_s:
        headings += [f"annealing, {time_s:g} s", f"ours, {time_s:g} s"]
    table = Table([*headings, "ours / annealing, worst", "annealing's last reached after"])
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record["status"] == DONE:
            groups.setdefault((record["instance"], record["family"]), []).append(record)
    worst_of_all, times = 0.0, []
    for (instance, family), runs in groups.items():
        cells: list[object] = []
        for time_s in times_s:
            for who in ("annealing", "ours"):
                cells.append(seconds(median([best_at(run[who], time_s) for run in runs]), 4))
        worst = max(ratio(run, time_s) for run in runs for time_s in times_s)
        reached = [reached_s(run["ours"], run["annealing"][-1][1] * (1 + TOLERANCE)) for run in runs]
        times += reached
        worst_of_all = max(worst_of_all, worst)
        table.add(instance, family, len(runs), *cells, f"{worst:.4f}", seconds(median(reached), 2))
    reached_after = seconds(median(times), 2)
    verdict = (
        f"Worst ratio of all {len(times)} runs {worst_of_all:.4f} (goal: at most {1 + TOLERANCE:g}); the "
        f"annealing's last plan (within {percent(TOLERANCE, 1)}) was reached after {reached_after} "
        "(median).\n"
    )
    return f"{verdict}\n{table.markdown()}"


def ratio(record: Record, time_s: float) -> float:
    """Ours over the annealing's at a moment; 0 while the annealing has nothing."""
    other = best_at(record["annealing"], time_s)
    return best_at(record["ours"], time_s) / other if math.isfinite(other) else 0.0
