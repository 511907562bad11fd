"""The tables of the README from scratch: what is proven, solvers, published methods, annealing.

Every part is a log of runs beside its table, so a run that was stopped goes on where it was. Limits are
chosen for half an hour on two cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pipette_milp.baselines import BASELINES
from pipette_milp.cost.build import CostModel
from pipette_milp.experiments.baseline_runs import BaselineJob
from pipette_milp.experiments.comparison import LOG_NAME, compare
from pipette_milp.experiments.engine import Job, Listener, Workers, run_missing
from pipette_milp.experiments.log import Record, RunLog
from pipette_milp.experiments.race import TIMES_S, RaceJob, contest
from pipette_milp.experiments.readme_tables import baseline_tables, proof_table, race_table
from pipette_milp.experiments.solve_runs import Limits, plan_runs
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.output import write_text_atomically
from pipette_milp.schema.plan import Configuration

PROOF = Limits(time_limit_s=60.0, gap=0.01, threads=2)
"""The defaults of `solve`, both cores."""
SOLVERS = Limits(time_limit_s=10.0, gap=0.0, threads=1)
"""Everybody searches to the end of the time."""
PARTS = ("proof", "solvers", "baselines", "annealing")


@dataclass(frozen=True)
class Effort:
    """How much is run."""

    cores: int = 2
    proof: Limits = PROOF
    solvers: tuple[str, ...] = ("auto", "local-search", "annealing", "annealing:as-published", "greedy")
    solver_seeds: tuple[int, ...] = (0, 1)
    solver_limits: Limits = SOLVERS
    methods: tuple[str, ...] = tuple(BASELINES)
    race_seeds: tuple[int, ...] = tuple(range(10))
    own_race_seeds: tuple[int, ...] = (0, 1, 2)
    """Of the race on the configuration of our own plan, where the annealing reaches few placements."""
    race_time_s: float = 15.0


FULL = Effort(own_race_seeds=tuple(range(10)), race_time_s=TIMES_S[-1])
"""The annealing gets its minute, and ten seeds on both configurations: more than an hour longer."""
SMOKE = Effort(
    cores=1,
    proof=Limits(time_limit_s=5.0, gap=0.01, threads=1),
    solvers=("auto", "local-search", "greedy"),
    solver_seeds=(0,),
    solver_limits=Limits(time_limit_s=5.0, gap=0.01, iteration_limit=30, threads=1),
    race_seeds=(0, 1),
    own_race_seeds=(0,),
    race_time_s=0.1,
)
"""Seconds, on tiny instances: shows that every part works."""


def reproduce(
    instances: Sequence[Instance],
    directory: Path,
    effort: Effort,
    *,
    parts: Sequence[str] = PARTS,
    listener: Listener | None = None,
) -> list[Path]:
    """Do what is missing of the parts asked for and write their tables; returns the files.

    The parts ``baselines`` and ``annealing`` compare with the plans of ``proof``, so it is done with them.

    Raises:
        InputError: the directory cannot be used.
        KeyboardInterrupt: what is finished is kept.
    """
    written = []
    if set(parts) & {"proof", "baselines", "annealing"}:
        best = _proof(instances, directory / "proof", effort, listener)
        write_text_atomically(directory / "proof.md", proof_table(best))
        written.append(directory / "proof.md")
    if "solvers" in parts:
        jobs = plan_runs(instances, effort.solvers, effort.solver_seeds, effort.solver_limits)
        compare(jobs, directory / "solvers", workers=Workers(effort.cores), listener=listener)
        written.append(directory / "solvers" / "comparison.md")
    if "baselines" in parts:
        baseline_jobs = [BaselineJob(instance, method) for instance in instances for method in effort.methods]
        records = _run(baseline_jobs, directory / "baselines", Workers(effort.cores), listener)
        write_text_atomically(directory / "baselines.md", baseline_tables(records, best))
        written.append(directory / "baselines.md")
    if "annealing" in parts:
        records = _run(
            races(instances, best, effort), directory / "annealing", Workers(effort.cores), listener
        )
        write_text_atomically(directory / "annealing.md", race_table(records))
        written.append(directory / "annealing.md")
    return written


def _run(jobs: Sequence[Job], directory: Path, workers: Workers, listener: Listener | None) -> list[Record]:
    with RunLog(directory / LOG_NAME) as log:
        run_missing(jobs, log, workers, listener)
        return log.of(job.key for job in jobs)


def _proof(
    instances: Sequence[Instance], directory: Path, effort: Effort, listener: Listener | None
) -> list[Record]:
    """One run of ``auto`` on each instance, with all cores."""
    return _run(plan_runs(instances, ["auto"], [0], effort.proof), directory, Workers(1), listener)


def races(instances: Sequence[Instance], best: Sequence[Record], effort: Effort) -> list[RaceJob]:
    """Two configurations of every instance: that of our plan, and the best whose tensor groups are whole
    nodes, where the annealing's moves reach every placement."""
    jobs = []
    plans = {record["instance_sha256"]: record.get("plan") for record in best}
    for instance in instances:
        costs = CostModel.of(instance)
        widest = int(costs.cluster.gpus_per_node.max())
        seeds_of: dict[Configuration, tuple[int, ...]] = {}
        plan = plans[instance.sha256()]
        if plan is not None:
            found = Configuration.model_validate(plan["configuration"])
            own = contest(costs, partial(same_family, found))
            if own is not None:
                seeds_of[own] = effort.own_race_seeds
        whole = contest(costs, partial(_whole_nodes, widest))
        if whole is not None:
            seeds_of[whole] = effort.race_seeds
        jobs += [
            RaceJob(instance, configuration, seed, effort.race_time_s)
            for configuration, seeds in seeds_of.items()
            for seed in seeds
        ]
    return jobs


def _whole_nodes(widest: int, configuration: Configuration) -> bool:
    """Every cell takes a node, and there is a pipeline."""
    return configuration.tensor == widest and configuration.pipeline > 1


def same_family(one: Configuration, other: Configuration) -> bool:
    """Equal but for the layer split."""
    return one.model_copy(update={"stages": ()}) == other.model_copy(update={"stages": ()})


def smaller(effort: Effort, seeds: int) -> Effort:
    """The same with fewer seeds."""
    return replace(
        effort,
        solver_seeds=effort.solver_seeds[:seeds],
        race_seeds=effort.race_seeds[:seeds],
        own_race_seeds=effort.own_race_seeds[:seeds],
    )
