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
# # Solver comparison
#
# There are many ways to search for a plan. Heuristics are quick and prove nothing; exact methods prove and
# may take long. "Ours is faster" says little unless all solvers saw the same instances, the same costs, the
# same time, and more than one random seed. This notebook runs such a comparison, small enough for a minute,
# and shows how to read it.

# %%
from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib
import pandas as pd

from pipette_milp import load_instance
from pipette_milp.experiments import plots
from pipette_milp.experiments.comparison import compare
from pipette_milp.experiments.engine import Workers
from pipette_milp.experiments.solve_runs import Limits, plan_runs
from pipette_milp.experiments.statistics import wilson_interval

# %matplotlib inline
matplotlib.rcParams["figure.dpi"] = 110
INSTANCES = next(folder for folder in (Path("instances"), Path("../instances")) if folder.is_dir())

# %% [markdown]
# ## The runs
#
# Two instances, two seeds, seven solvers, and one second for each run. Two of them are published methods:
# Megatron-LM's rule of thumb and Pipette's procedure. Each decides by the cost model of its own paper; what
# it decided is then judged by the same simulator as everybody else's plan. The folder holds a log with one
# line per finished run: a comparison that is interrupted goes on where it stopped, and never repeats or loses
# a run. On the command line this is `python -m pipette_milp compare`, also over several processes or a Dask
# cluster.

# %%
names = ("tiny-2x2-a100-nominal", "tiny-4x1-v100-slow")
instances = [load_instance(INSTANCES / f"{name}.json") for name in names]
exact, heuristics = ["branch-and-bound", "joint-milp"], ["greedy", "local-search", "annealing"]
published = ["megatron-rule", "pipette"]
solvers = exact + heuristics + published
jobs = plan_runs(instances, solvers, seeds=[0, 1], limits=Limits(time_limit_s=1.0, gap=1e-4))
with tempfile.TemporaryDirectory() as folder:
    records = compare(jobs, folder, workers=Workers(processes=1), pictures=False)
print(f"{len(records)} runs")

# %% [markdown]
# ## The plans
#
# `simulated_s` is the time of the plan that a solver found, judged by one simulator for all. `gap` is what it
# *proved*: heuristics have none. That is no zero, and no "probably fine": a plan without a bound could be
# 0.1 % or 30 % from the best one, and only another solver's bound tells which.

# %%
runs = pd.DataFrame(records)[["instance", "solver", "seed", "status", "simulated_s", "gap", "solve_wall_s"]]
runs.pivot_table(
    index=["instance", "solver"], values=["simulated_s", "gap", "solve_wall_s"], aggfunc="median"
).round(4)

# %% [markdown]
# How far is each run above the best plan that *any* solver found for its instance?

# %%
best_s = runs.groupby("instance")["simulated_s"].transform("min")
runs["above_best_%"] = 100 * (runs["simulated_s"] / best_s - 1)
runs.pivot_table(index="solver", columns="instance", values="above_best_%", aggfunc=["median", "max"]).round(
    3
)

# %% [markdown]
# ## Pictures
#
# The performance profile shows the share of runs that came within some distance of the best known plan.
# Higher is better; the curve of a solver that is always best is flat at the top.

# %%
plots.performance_profile(records)

# %% [markdown]
# Gap over time for one instance: plans come down from above, bounds come up from below. A heuristic has the
# upper curve only.

# %%
plots.gap_over_time(records, instances[1].sha256())

# %% [markdown]
# ## Reading it fairly
#
# * **One seed is an anecdote.** A randomised solver must be run several times, and a claim needs an interval:
#   four wins of four runs leave the true share of wins anywhere from a half to one.
# * **Ties are ties.** Plans closer than the model's error are the same plan in practice.
# * **Easy instances teach nothing.** On instances this small every method finds the best plan; differences
#   appear with many nodes, pods and slow links. `make experiments` runs those.
# * **Time counts from the start**, model building included, and every solver gets the same number of cores.

# %%
low, high = wilson_interval(4, 4)
print(f"4 wins of 4: with 95 % confidence the share of wins is {low:.0%} to {high:.0%}")
