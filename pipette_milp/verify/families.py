"""Names of configurations in messages, and times comparable across families."""

from __future__ import annotations

from pipette_milp.schema.plan import Configuration


def per_sequence_s(seconds: float, configuration: Configuration) -> float:
    """An iteration's time divided by its sequences: families may have different global batches."""
    return seconds / configuration.global_batch_size


def short_name(configuration: Configuration) -> str:
    """Degrees and options in a few characters, for messages."""
    c = configuration
    parts = [f"p{c.pipeline} t{c.tensor} d{c.data} b{c.micro_batch} {c.schedule}"]
    if c.virtual_stages > 1:
        parts.append(f"v{c.virtual_stages}")
    if c.sequence_parallel:
        parts.append("sequence parallel")
    if c.data_sharding != "none":
        parts.append(f"sharded {c.data_sharding}")
    if c.recompute != "none":
        parts.append(f"{c.recompute} recompute")
    return " ".join(parts)
