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
# # The cut loop: how a simulator proves optimality
#
# An iteration is a web of tasks that wait for each other. Its time is the *longest path* through that web.
# No formula gives it exactly: stages differ, links differ, and with one-forward-one-backward scheduling
# (1F1B) the path wanders between stages. A simulator finds it easily, but a simulator only answers "how long
# does *this* plan take", never "is there a better one".
#
# The trick that joins both: **a path does not depend on the placement.** Which task waits for which is fixed
# by the schedule. So a path that the simulator found once gives a valid inequality for every plan:
# *the iteration takes at least as long as this path, whatever its tasks last.* Such a **path cut** is linear
# in the durations, and a mixed-integer model can use it.

# %%
from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from pipette_milp import load_instance, plots
from pipette_milp.cost.build import CostModel
from pipette_milp.cost.durations import Durations
from pipette_milp.search_space import enumerate_space
from pipette_milp.simulator import event_graph, path_counts, simulate, simulated_s
from pipette_milp.solvers.joint import solve_joint

# %matplotlib inline
matplotlib.rcParams["figure.dpi"] = 110

STAGES, BATCHES = 4, 12

# %% [markdown]
# ## One pipeline, many link speeds
#
# Four stages, twelve micro-batches. Compute is fixed, the three hops between the stages take a random time
# each: that is what a placement decides. One function turns hop times into the durations of the simulator.

# %%
graph = event_graph("1f1b", STAGES, 1, BATCHES, "exchange")
forward_s = np.array([10.0, 9.0, 9.0, 11.0]) * 1e-3


def durations(hop_s: np.ndarray) -> Durations:
    """A pipeline with these times of its hops, the same in both directions."""
    column = forward_s[:, None]
    hops = np.asarray(hop_s, dtype=float)[:, None]
    nothing = np.zeros(STAGES)
    return Durations(column, 2 * column, None, hops, hops, nothing, 0.0, nothing, nothing, 0.0)


rng = np.random.default_rng(7)
placements = rng.lognormal(np.log(2e-3), 1.2, size=(40, STAGES - 1))
times_s = np.array([simulated_s(graph, durations(hops)) for hops in placements])
print(f"{len(times_s)} placements, {times_s.min():.3f} s to {times_s.max():.3f} s")

# %% [markdown]
# ## Where the longest path goes
#
# With fast links the path runs along the slowest stage. One slow link moves it: now it goes to and fro over
# that link, because with 1F1B a stage sends an activation forward only in turn with a gradient that comes
# back. Red outlines show the path.

# %%
figure = Figure(figsize=(9, 5.6), layout="constrained")
fast, slow = figure.subplots(2, 1)
plots.timeline(simulate(graph, durations([1e-3, 1e-3, 1e-3])), title="All links fast", axes=fast)
plots.timeline(simulate(graph, durations([1e-3, 12e-3, 1e-3])), title="The second link slow", axes=slow)
fast.get_legend().remove()
figure

# %% [markdown]
# The popular estimate "(micro-batches - 1) times the slowest stage, plus one pass through the pipeline with
# all hops" misses this: it charges the slow link once per direction, the schedule pays for it again and
# again.

# %%
hops = np.array([1e-3, 12e-3, 1e-3])
estimate_s = (BATCHES - 1) * 3 * forward_s.max() + 3 * forward_s.sum() + 2 * hops.sum()
exact_s = simulated_s(graph, durations(hops))
print(f"estimate {estimate_s:.3f} s, simulated {exact_s:.3f} s: {exact_s / estimate_s - 1:.0%} more")

# %% [markdown]
# ## Reading a cut off the simulator
#
# A path cut is a list of whole numbers: how often the path takes each forward, backward and hop.


# %%
def cut_of(hops: np.ndarray) -> np.ndarray:
    """Counts of the longest path: forward, backward [4] each, both directions of the hops [3] each."""
    found = path_counts(graph, forward_s, 2 * forward_s, hops, hops, end_stage=0)
    return np.concatenate([found.forward, found.backward, found.hop_forward, found.hop_backward])


def value_s(cut: np.ndarray, hops: np.ndarray) -> float:
    """What a cut says about another placement: a lower bound of its time."""
    return float(cut @ np.concatenate([forward_s, 2 * forward_s, hops, hops]))


for name, case in (("all links fast", [1e-3] * 3), ("second link slow", [1e-3, 12e-3, 1e-3])):
    cut = cut_of(np.array(case))
    print(f"{name:<17} forward {cut[:4]} backward {cut[4:8]} hops {cut[8:11]} and back {cut[11:]}")

# %% [markdown]
# ## How good are a few cuts?
#
# Start with one cut, the path without communication, and evaluate it on all 40 placements: it is never above
# the simulator, but far below where links are slow. Then do what the loop does: take the placement where
# the cuts are furthest off, simulate it, add its path.

# %%
cuts = [cut_of(np.zeros(STAGES - 1))]
worst = []
for number in range(1, 9):
    bounds_s = np.array([max(value_s(cut, hops) for cut in cuts) for hops in placements])
    assert np.all(bounds_s <= times_s * (1 + 1e-12)), "a cut is a lower bound, always"
    error = 1 - bounds_s / times_s
    worst.append(float(error.max()))
    print(f"{number} cuts: worst error {error.max():7.3%}, mean {error.mean():7.3%}")
    if error.max() < 1e-9:
        break
    cuts.append(cut_of(placements[int(error.argmax())]))

# %% [markdown]
# A handful of cuts is exact on all placements: there are many paths, but few of them are ever the longest.

# %%
figure = Figure(figsize=(5, 3), layout="constrained")
axes = figure.add_subplot()
axes.plot(range(1, len(worst) + 1), [100 * value for value in worst], marker="o", color="#0072b2")
axes.set_xticks(range(1, len(worst) + 1))
axes.set_xlabel("cuts")
axes.set_ylabel("worst error of the bound, %")
axes.set_ylim(bottom=0)
figure

# %% [markdown]
# ## The loop
#
# The solver has no list of placements: it has a model in which the placement is a variable. The loop is the
# same. Solve the model with the cuts so far; its optimum is a **lower bound** for all plans. Simulate the
# plan it returns; that time is an **upper bound**. If they differ, the longest path of that plan was missing:
# add it. Both bounds close in on each other, and when they meet the plan is proven optimal, for the
# simulator and not for some formula. Here is the loop on real cost tables, two configurations at once.

# %%
INSTANCES = next(folder for folder in (Path("instances"), Path("../instances")) if folder.is_dir())
costs = CostModel.of(load_instance(INSTANCES / "tiny-4x1-v100-slow.json"))
families = [tables for tables in enumerate_space(costs).families if tables.pipeline == 2][:2]
outcome = solve_joint(families, backend="milp", in_process=True)
for number, step in enumerate(outcome.rounds, start=1):
    print(
        f"round {number}: {step.cuts} cuts, bound {step.lower_bound_s * 1e3:.3f} ms, "
        f"best plan {step.incumbent_s * 1e3:.3f} ms"
    )
gap = 1 - outcome.lower_bound_s / outcome.simulated_s
print(f"{outcome.simulated_s * 1e3:.3f} ms, proven up to {gap:.1e}")
