# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The formulation on four GPUs
#
# Two nodes with two GPUs each, a pipeline of two stages, two replicas: four cells, one GPU each. Where
# should each cell run, and how should six layers be split? This notebook writes the question as a mixed-
# integer model, lets the simulator correct the model round by round until both agree, and checks the
# answer by trying everything.

# %%
from __future__ import annotations

import itertools

import numpy as np

from pipette_milp.cost.placement import placement_durations
from pipette_milp.cost.tables import CostTables, Ring
from pipette_milp.formulations import milp
from pipette_milp.formulations.problem import CONSTRAINT_FAMILIES, JointProblem, ModelPlan
from pipette_milp.schema.plan import Configuration, split_stages
from pipette_milp.simulator import simulated_s
from pipette_milp.solvers.cut_loop import CutPool, judge, separate
from pipette_milp.solvers.interval_cuts import first_cuts, graph_of, interval_cuts
from pipette_milp.solvers.joint import solve_joint
from pipette_milp.solvers.solver_call import SolveOptions, solve

GB = 1e9
MB = 1e6

# %% [markdown]
# ## What a formulation reads
#
# Cost tables and nothing else: times per layer, memory per layer, links between nodes, bytes of every
# kind of communication. The link from node 0 to node 1 is faster than the way back, stage 0 also holds
# the embedding and stage 1 the head, and memory does not allow more than four layers on stage 0.

# %%
tables = CostTables(
    configuration=Configuration(
        pipeline=2,
        tensor=1,
        data=2,
        micro_batch=1,
        num_micro_batches=4,
        schedule="1f1b",
        pipeline_transfers="exchange",
        stages=split_stages((3, 3)),
    ),
    total_layers=6,
    min_layers=np.array([1, 1]),
    max_layers=np.array([5, 5]),
    forward_layer_s=10e-3,
    backward_layer_s=20e-3,
    weight_gradient_layer_s=0.0,
    forward_extra_s=np.array([1e-3, 6e-3]),
    backward_extra_s=np.array([1e-3, 12e-3]),
    weight_gradient_extra_s=np.zeros(2),
    memory_layer_bytes=np.array([1.0 * GB, 0.8 * GB]),
    memory_extra_bytes=np.array([2.0 * GB, 2.0 * GB]),
    memory_usable_bytes=6.5 * GB,
    slots=np.array([2, 2]),
    latency_s=np.full((2, 2), 10e-6),
    pair_bytes_per_s=np.array([[np.inf, 8 * GB], [5 * GB, np.inf]]),
    egress_bytes_per_s=np.array([10 * GB, 10 * GB]),
    ingress_bytes_per_s=np.array([10 * GB, 10 * GB]),
    port_bytes_per_s=10 * GB,
    local_bytes_per_s=np.array([100 * GB, 100 * GB]),
    local_latency_s=np.full(2, 4e-6),
    hop_bytes=60 * MB,
    hop_gather_s=0.0,
    sync=Ring(
        bytes_per_layer=100 * MB,
        bytes_extra=np.array([50 * MB, 50 * MB]),
        latency_s=10e-6,
        latency_per_node_step_s=28e-6,
        latency_per_local_step_s=7e-6,
    ),
    sync_buckets=1,
    gather=Ring(0.0, np.zeros(2), 0.0, 0.0, 0.0),
    gather_exposed=False,
    embedding_bytes=50 * MB,
    embedding_latency_s=30e-6,
    optimizer_layer_s=0.5e-3,
    optimizer_extra_s=np.array([0.2e-3, 0.2e-3]),
    fixed_s=0.1e-3,
)

# %% [markdown]
# ## The model
#
# `on[s, z, n]` puts the cell of stage `s`, replica `z` on node `n`; `layers[j]` is a whole number. Every
# duration is a variable that linear rows push up: a hop is at least the time of the link its arc
# variables choose, and at least what all flows through the same node or node pair take together; a ring
# is at least its bytes over every link it uses. The time of the iteration is at least every *path cut*.
# `milp.build` makes all of it, one constraint family after the other:

# %%
start = first_cuts(tables)
problem = JointProblem((tables,), (1.0,), reference_s=1.0, cuts=tuple(start))
built = milp.build(problem)
block = built.parts[0].block
sizes = {}
for name in CONSTRAINT_FAMILIES:
    component = block.component(name)
    if component is not None:
        sizes[name] = len(component)
print(f"{'constraint family':<20}rows")
for name, rows in sizes.items():
    print(f"{name:<20}{rows:>4}")

# %% [markdown]
# A path cut says how often a path through the event graph takes each duration. The graph depends on the
# schedule only, so the counts hold for every placement and every layer split. Here is what the pipeline
# without communication gives, and how many more the interval cuts add:

# %%
for cut in start:
    print(
        f"end of stage {cut.end_stage}: forward {cut.forward}, backward {cut.backward}, "
        f"hops {cut.hop_forward} and {cut.hop_backward}"
    )
print(f"{len(interval_cuts(tables))} distinct interval cuts")

# %% [markdown]
# ## The loop
#
# Solve the model: its optimum is a lower bound. Simulate its plan: an upper bound. If they differ, the
# longest path of the simulation is a cut that the model did not have. It starts here with the cuts of a
# pipeline without communication; the solver itself starts with the interval cuts, which with more stages
# saves most of the rounds. The bound never falls, the incumbent never rises, and both meet:

# %%
pool = CutPool()
pool.add(start)
incumbent_s, best = np.inf, None
gaps = []
print(f"{'round':>5} {'cuts':>5} {'bound ms':>9} {'simulated ms':>13} {'incumbent ms':>13} {'gap':>8}")
for number in range(1, 20):
    problem = JointProblem((tables,), (1.0,), reference_s=1.0, cuts=pool.of([0]))
    report = solve(problem, SolveOptions(backend="milp"), lambda progress: None)
    judged = judge(tables, report.plan)
    if judged.simulated_s < incumbent_s:
        incumbent_s, best = judged.simulated_s, report.plan
    gaps.append(max(0.0, (incumbent_s - report.bound_s) / incumbent_s))
    print(
        f"{number:>5} {len(problem.cuts):>5} {report.bound_s * 1e3:>9.3f} {judged.simulated_s * 1e3:>13.3f} "
        f"{incumbent_s * 1e3:>13.3f} {gaps[-1]:>8.3%}"
    )
    if gaps[-1] < 1e-6:
        break
    pool.add(separate(tables, judged, 0, report.claimed_s))

# %% [markdown]
# ## The answer, and whether it is right
#
# Four cells on two nodes can be placed in six ways, six layers split in a few. Trying all of them gives
# the same time as the model. So does CP-SAT, which gets the same constraint families as literals and
# whole ticks.

# %%
plans = []
for nodes in itertools.product(range(2), repeat=4):
    if nodes.count(0) > 2 or nodes.count(1) > 2:
        continue
    placement = (nodes[:2], nodes[2:])
    for first in range(1, 6):
        layers = (first, 6 - first)
        memory = np.array(layers) * tables.memory_layer_bytes + tables.memory_extra_bytes
        if np.all(memory <= tables.memory_usable_bytes):
            durations = placement_durations(tables, np.array(layers), np.array(placement))
            plans.append((simulated_s(graph_of(tables), durations), ModelPlan(0, layers, placement)))
exhaustive_s = min(plans, key=lambda plan: plan[0])[0]
outcome = solve_joint([tables], backend="cpsat", in_process=True)

print(f"layers {best.layers}, node of each cell {best.node_of_cell}")
print(f"cut loop with the MILP  {incumbent_s * 1e3:.3f} ms")
print(f"joint solver, CP-SAT    {outcome.simulated_s * 1e3:.3f} ms, {len(outcome.rounds)} round(s)")
print(f"all {len(plans)} plans tried     {exhaustive_s * 1e3:.3f} ms")
