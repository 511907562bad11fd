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
# # Accuracy against measured runs
#
# A proof of optimality holds for the *simulator*. Whether the simulator is right about the machine is another
# question, and no proof answers it: only measured runs do. This notebook compares estimates with ten
# published runs, up to 3,072 GPUs, and shows how to read such a comparison without fooling oneself.

# %%
from __future__ import annotations

import io

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pipette_milp.calibration.accuracy import accuracy_table, judge
from pipette_milp.calibration.runs import parse_runs

# %matplotlib inline
matplotlib.rcParams["figure.dpi"] = 110

# %% [markdown]
# ## The runs
#
# Table 1 of *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM* (Narayanan et
# al., SC21, arXiv 2104.04473): GPT models from 1.7 to 1,008 billion parameters on DGX A100 nodes with eight
# cards of 200 Gbit/s. Micro-batch sizes and numbers of virtual stages are those of the script that the paper
# published for this table (`examples/sc21/run_table_1.sh` of Megatron-LM).

# %%
PUBLISHED = pd.read_csv(
    io.StringIO("""
billions,layers,hidden,heads,tensor,pipeline,virtual,gpus,micro_batch,global_batch,tflops
1.7,24,2304,24,1,1,1,32,16,512,137
3.6,30,3072,32,2,1,1,64,16,512,138
7.5,36,4096,32,4,1,1,128,16,512,142
18.4,40,6144,48,8,1,1,256,8,1024,135
39.1,48,8192,64,8,2,1,512,4,1536,138
76.1,60,10240,80,8,4,3,1024,2,1792,140
145.6,80,12288,96,8,8,2,1536,2,2304,148
310.1,96,16384,128,8,16,2,1920,1,2160,155
529.6,105,20480,128,8,35,3,2520,1,2520,163
1008.0,128,25600,160,8,64,1,3072,1,3072,163
""")
)
SEQUENCE, VOCABULARY = 2048, 51200

# %% [markdown]
# The table gives teraflops per GPU, not seconds. Equation 3 of the paper says what was counted: forward,
# backward *and* the forward pass that recomputation repeats. Undoing it gives the time of an iteration. The
# figures are rounded to three digits, so these seconds are known to about 0.4 %.


# %%
def seconds(run: pd.Series) -> float:
    """Time of an iteration from teraflops per GPU: equation 3 of the paper."""
    layers, hidden = run.layers, run.hidden
    tokens = run.global_batch * SEQUENCE
    flop = (
        96 * tokens * layers * hidden**2 * (1 + SEQUENCE / (6 * hidden) + VOCABULARY / (16 * layers * hidden))
    )
    return float(flop / (run.gpus * run.tflops * 1e12))


PUBLISHED["measured_s"] = PUBLISHED.apply(seconds, axis=1)
PUBLISHED[["billions", "gpus", "tensor", "pipeline", "tflops", "measured_s"]].round(2)

# %% [markdown]
# ## The estimates
#
# The command `accuracy` reads tables of runs with one column for each thing that matters; the same functions
# work from Python. Every run becomes an instance and a configuration, and is simulated like any plan.

# %%
RUNS = pd.DataFrame(
    {
        "run_id": "sc21_" + PUBLISHED.billions.astype(str),
        "split_hint": "megatron-sc21",
        "gpu_model": "A100-80GB",
        "gpu_mem_gb": 80,
        "gpus_per_node": 8,
        "num_gpus": PUBLISHED.gpus,
        "inter_node_bw_Gbps": 1600,
        "layers": PUBLISHED.layers,
        "hidden": PUBLISHED.hidden,
        "heads": PUBLISHED.heads,
        "vocab": VOCABULARY,
        "seq_len": SEQUENCE,
        "tp": PUBLISHED.tensor,
        "pp": PUBLISHED.pipeline,
        "vpp": PUBLISHED.virtual,
        "micro_batch": PUBLISHED.micro_batch,
        "global_batch": PUBLISHED.global_batch,
        "seq_parallel": False,
        "recompute": "full",
        "precision": "fp16",
        "flash_attention": False,
        "framework": "Megatron-LM v2.x",
        "measured_iter_time_s": PUBLISHED.measured_s,
    }
)
judged = judge(parse_runs(RUNS.to_csv(index=False)).runs)
compared = pd.DataFrame(
    {
        "billions": PUBLISHED.billions,
        "measured_s": [item.measured_s for item in judged],
        "estimated_s": [np.nan if item.estimate is None else item.estimate.time_s for item in judged],
        "error_%": [np.nan if item.time_error is None else 100 * item.time_error for item in judged],
        "refused": [item.reason for item in judged],
    }
)
compared.round(2)

# %% [markdown]
# A run that the model cannot express is *refused* with a reason and counted, never left out in silence: a
# tool that only estimates what it is good at looks better than it is.

# %%
figure = Figure(figsize=(5, 3.6), layout="constrained")
axes = figure.add_subplot()
low, high = 0.8 * compared.measured_s.min(), 1.25 * compared.measured_s.max()
axes.plot([low, high], [low, high], color="#1b1b1b", linewidth=1, label="equal")
axes.fill_between(
    [low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color="#56b4e9", alpha=0.3, label="± 10 %"
)
axes.scatter(compared.measured_s, compared.estimated_s, color="#d55e00", zorder=3, label="runs")
axes.set(xscale="log", yscale="log", xlabel="measured, s", ylabel="estimated, s")
axes.legend(frameon=False)
figure

# %% [markdown]
# ## Four figures, because one hides things
#
# * **MAPE**, the mean of the absolute relative errors: how far off an estimate is.
# * **Bias**, the mean of the signed errors: whether it is off in *one direction*. A bias is harmless for
#   choosing a plan (all plans shift together) and fatal for predicting a date.
# * **Median**: what is left when a few bad runs do not count.
# * **Rank correlation** (Spearman) inside a sweep: whether the *order* of the plans is right. This is what an
#   optimiser lives on. These ten runs are ten different models, so there is no order to check here.

# %%
rows = pd.DataFrame([row.to_dict() for row in accuracy_table(judged)])
rows[["subset", "n", "refused", "time_mape", "time_median_ape", "time_bias"]].round(3)

# %% [markdown]
# ## Where the time goes
#
# The same ten runs by size. If the error grew steadily with the number of GPUs, communication would be the
# suspect; if it depended on hidden size, the efficiency of matrix products.

# %%
figure = Figure(figsize=(5, 3), layout="constrained")
axes = figure.add_subplot()
axes.axhline(0, color="#1b1b1b", linewidth=0.8)
axes.plot(PUBLISHED.gpus, compared["error_%"], marker="o", color="#0072b2")
axes.set(xscale="log", xlabel="GPUs", ylabel="error of the estimate, %")
figure

# %% [markdown]
# ## What this does and does not show
#
# Ten runs of one team on one kind of machine, all of them tuned by people who knew what they did. Nothing
# follows for other GPUs, other frameworks or badly chosen plans, and plans closer to each other than the
# error cannot be told apart: results mark them as `indistinguishable`. To judge the estimates for *your*
# machines, collect your own runs in such a table: `python -m pipette_milp accuracy runs.csv`.
