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
# # What a slow node and pods do
#
# Data sheets promise equal links. Real clusters have a node whose card negotiated half its speed, and pods:
# groups of nodes under one switch, with less bandwidth between the groups. Does it matter *where* each part
# of the model runs? This notebook changes the links of one small cluster, asks for the best plan each time,
# and compares it with the same configuration in default rank order: what one gets without thinking about
# placement.

# %%
from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pipette_milp import load_instance, plots, solve
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.result import SolveResult

# %matplotlib inline
matplotlib.rcParams["figure.dpi"] = 110
INSTANCES = next(folder for folder in (Path("instances"), Path("../instances")) if folder.is_dir())
NODES = 8
FAST, SLOW = 25.0, 8.0  # GB/s between two nodes

# %% [markdown]
# ## The cluster
#
# Eight nodes with one GPU each, so that every message between GPUs crosses the network and nothing hides
# the effect. Small models need no such cluster; this one is small so that the proof takes seconds.


# %%
def cluster_with(bandwidth: np.ndarray, name: str, **search: object) -> Instance:
    """The tiny model on eight nodes with these links, GB/s, row = sender."""
    data = json.loads((INSTANCES / "tiny-3x1-a100-flat.json").read_text(encoding="utf-8"))
    data["name"] = name
    data["model"]["layers"] = 8
    data["training"]["global_batch_size"] = 16
    data["cluster"]["nodes"][0]["count"] = NODES
    link = data["cluster"]["network"]["inter_node"]
    values = [[None if a == b else float(bandwidth[a, b]) for b in range(NODES)] for a in range(NODES)]
    link["bandwidth"] = {"unit": "GB/s", "values": values}
    data["search"] = search
    return load_instance(data)


rng = np.random.default_rng(3)
noise = rng.uniform(0.97, 1.03, size=(NODES, NODES))
even = FAST * noise

one_slow = even.copy()
one_slow[2, :] = one_slow[:, 2] = SLOW

pod_of = np.array([0, 1, 0, 1, 1, 0, 1, 0])
pods = np.where(pod_of[:, None] == pod_of[None, :], FAST, SLOW) * noise

clusters = {"even": even, "one slow node": one_slow, "two pods": pods}

# %% [markdown]
# In pods, neighbouring numbers need not be in the same pod: batch systems hand out nodes as they come. Mind
# the colour bars: on the left all colours together span 5 %, on the right a factor of three.

# %%
figure = Figure(figsize=(10.5, 3.4), layout="constrained")
for axes, (name, bandwidth) in zip(figure.subplots(1, 3), clusters.items(), strict=True):
    plots.links(cluster_with(bandwidth, name), axes=axes)
    axes.set_title(name, loc="left", fontsize=9)
figure

# %% [markdown]
# ## The best plan on each
#
# `default_order_s` is the time of the winning configuration with rank *r* on the *r*-th GPU. The difference
# is what placement alone is worth: same degrees, same layers, same schedule.

# %%
results: dict[str, tuple[Instance, SolveResult]] = {}
rows = []
for name, bandwidth in clusters.items():
    instance = cluster_with(bandwidth, name)
    result = solve(instance, gap=0.01, time_limit_s=6, threads=1)
    results[name] = instance, result
    configuration = result.plan.configuration
    rows.append(
        {
            "links": name,
            "pipeline": configuration.pipeline,
            "data": configuration.data,
            "layers": " ".join(map(str, configuration.layers_per_stage)),
            "best_ms": 1e3 * result.simulated_s,
            "default_order_ms": 1e3 * result.default_order_s,
            "placement_gains_%": 100 * (result.default_order_s / result.simulated_s - 1),
            "gap_%": 100 * result.gap,
        }
    )
table = pd.DataFrame(rows).set_index("links")
table.round(2)

# %% [markdown]
# With even links placement is worth little, and no method can make it worth more: the proof says
# how little is left. Whoever reports large gains on an even network compares with something else.
#
# ## Where the slow links go
#
# Rows and columns are ordered by stage; circles carry activations from stage to stage, squares gradients
# around the ring of each stage. Dark cells are slow links: a good plan leaves as many of them as it can
# without a mark.

# %%
figure = Figure(figsize=(10.5, 4.2), layout="constrained")
for axes, name in zip(figure.subplots(1, 2), ("one slow node", "two pods"), strict=True):
    plots.links(*results[name], axes=axes)
    axes.set_title(name, loc="left", fontsize=9)
figure

# %% [markdown]
# ## Why it is not always the same remedy
#
# Two kinds of messages cross the network, and they mind slow links differently:
#
# * **Activations** between stages are small and come once per micro-batch. A slow link in a pipeline
#   stretches the beat of that pipeline, and only of that one.
# * **Gradients** are as large as the weights and come once per iteration. The ring of a stage is as slow
#   as its slowest edge, so one slow node slows all replicas of that stage.
#
# So let us force one configuration on all three networks, four replicas of two stages, and look at where
# the time goes.

# %%
rows = []
for name, bandwidth in clusters.items():
    instance = cluster_with(bandwidth, name, pipeline=[2], data=[4], micro_batch=[1])
    forced = solve(instance, gap=0.01, time_limit_s=6, threads=1)
    path = forced.critical_path.model_dump()
    rows.append({"links": name, **{key: 1e3 * value for key, value in path.items() if value > 0}})
pd.DataFrame(rows).set_index("links").round(2)

# %% [markdown]
# Milliseconds along the longest path. Where the sum of `gradient_sync_s` grows, the free choice above evades
# it: fewer replicas and more stages, or rings that stay inside a pod. That is why degrees and placement
# belong into one model: the best degrees depend on the links, and what the links are worth depends on the
# degrees.
#
# ## Leaving the slow node out
#
# The simplest remedy would be to switch the slow node off. `exclude` does that; here is what it costs.

# %%
data = cluster_with(one_slow, "without the slow node").model_dump(mode="json")
data["cluster"]["exclude"]["nodes"] = ["node-002"]
data["search"]["use_all_gpus"] = False
without = solve(load_instance(data), gap=0.01, time_limit_s=6, threads=1)
kept_s = results["one slow node"][1].simulated_s
print(f"with the slow node    {1e3 * kept_s:.2f} ms")
print(f"without it            {1e3 * without.simulated_s:.2f} ms")
