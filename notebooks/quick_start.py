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
# # Quick start
#
# Training a large language model spreads one computation over many GPUs, in three ways at once:
#
# * **tensor**: the GPUs of a group share every layer and exchange pieces of it all the time;
# * **pipeline**: groups of layers (*stages*) sit on different GPUs, *micro-batches* flow through them;
# * **data**: the whole thing exists several times (*replicas*), each works on its share of the batch, and
#   all of them add up their gradients at the end of an iteration.
#
# How much of each, how many layers every stage gets, and *which* GPU does what decides how long an iteration
# takes and whether it fits into memory. This notebook takes a small cluster, finds the best plan, and looks
# at the proof that there is no better one.

# %%
from __future__ import annotations

from pathlib import Path

import matplotlib

from pipette_milp import load_instance, plots, solve, verify

# %matplotlib inline
INSTANCES = next(folder for folder in (Path("instances"), Path("../instances")) if folder.is_dir())
matplotlib.rcParams["figure.dpi"] = 110

# %% [markdown]
# ## The question
#
# An instance says what is to be trained, on what, and what may be chosen. This one is tiny: four nodes with
# two GPUs each, and links between the nodes that differ by a few per cent.

# %%
instance = load_instance(INSTANCES / "tiny-4x2-a100-flat.json")
instance

# %% [markdown]
# Links are directed: row = sender, column = receiver, gigabytes per second.

# %%
instance.to_pandas("links") / 1e9

# %% [markdown]
# ## The answer
#
# `solve` returns the best plan it found **and a lower bound**: a time that no plan at all can undercut, over
# all degrees, all layer splits and all placements. Plan and bound meet here, so the plan is optimal. On
# large clusters a small gap usually remains, and the result says how large it is.

# %%
result = solve(instance, gap=0.0, time_limit_s=120, threads=1)
result

# %% [markdown]
# The search kept the best plan of every set of degrees. The columns that end in `_s` say how much of the
# longest path each kind of work takes: they add up to `simulated_s`.

# %%
result.to_pandas().T

# %% [markdown]
# ## What happens in one iteration
#
# Every row is a pipeline stage, every bar a task, numbers are micro-batches. Forward passes go down the
# stages, backward passes come up again. White is waiting: the *bubble* at both ends is the price of a
# pipeline. The red outline is the **longest path**: making anything shorter that is not on it changes
# nothing.

# %%
plots.timeline(result)

# %% [markdown]
# ## Where it runs
#
# `0:3` is stage 0 of replica 3. GPUs that share stage and replica form a tensor group.

# %%
plots.placement(instance, result)

# %% [markdown]
# ## Memory
#
# A plan that does not fit is no plan. Weights, gradients and optimizer state are there all the time;
# activations pile up because a stage keeps those of every micro-batch whose backward pass is still to come,
# and the first stage waits longest for them.

# %%
plots.memory(result)

# %% [markdown]
# ## Everything that was considered
#
# The best time of each pipeline and tensor degree. A number after `≥` is a bound: the search did not need
# to find a plan there to know that it cannot win.

# %%
plots.configurations(result)

# %% [markdown]
# ## Why you need not believe any of it
#
# `verify` starts from instance and plan alone: it simulates the plan again, lists all configurations again
# and derives every bound again. What it cannot re-derive without a solver it names.

# %%
checks = verify(instance, result)
for claim in checks.claims:
    print(f"{'ok' if claim.ok else 'FAILED':<7} {claim.how:<11} {claim.claim}")

# %% [markdown]
# ## From here
#
# On the command line the same is `python -m pipette_milp solve instance.json -o result.json`; then
# `report instance.json result.json -o report.html` writes all of this into one file that can be mailed, and
# `export slurm instance.json result.json -o launch/` writes the files that start the training with every
# rank on its GPU.
