"""Tables of measured runs, written as users write them."""

from __future__ import annotations

ROW: dict[str, str] = {
    "run_id": "mine_1",
    "split_hint": "mine",
    "gpu_model": "A100-80GB",
    "gpu_mem_gb": "80",
    "gpus_per_node": "8",
    "num_gpus": "16",
    "inter_node_bw_Gbps": "1600",
    "model_name": "gpt-small",
    "layers": "8",
    "hidden": "1024",
    "heads": "16",
    "vocab": "50257",
    "seq_len": "1024",
    "tp": "2",
    "pp": "2",
    "micro_batch": "2",
    "global_batch": "64",
    "precision": "bf16",
    "framework": "Megatron-LM",
    "measured_iter_time_s": "0.5",
}


def table(*changes: dict[str, str]) -> str:
    """A CSV text with one row per set of changes to `ROW`; an empty text leaves the field empty."""
    rows = [{**ROW, **change} for change in changes]
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(names)] + [",".join(row.get(name, "") for name in names) for row in rows]
    return "\n".join(lines) + "\n"
