"""What an importer found, as a record people and programs can read."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipette_milp.importers.collective import CollectiveRun
from pipette_milp.importers.facts import PairwiseBandwidth
from pipette_milp.importers.huggingface import ImportedModel
from pipette_milp.importers.megatron_run import MegatronRun
from pipette_milp.importers.mpigraph import MpiGraph
from pipette_milp.importers.node_topology import Link, NodeTopology


def record_of(fact: Any) -> dict[str, Any]:
    """A JSON object that says what was found, in SI units; keys depend on the kind of fact."""
    if isinstance(fact, NodeTopology):
        return _topology(fact)
    if isinstance(fact, CollectiveRun):
        return _collective(fact)
    if isinstance(fact, MpiGraph):
        return {
            **_pairwise(fact.pairwise()),
            "endpoints": [f"{host}:{rank}" for host, rank in fact.endpoints],
            "message_bytes": fact.message_bytes,
            "harmonic_mean_bytes_per_s": fact.harmonic_mean_bytes_per_s(),
        }
    if isinstance(fact, PairwiseBandwidth):
        return _pairwise(fact)
    if isinstance(fact, MegatronRun):
        return _megatron(fact)
    if isinstance(fact, ImportedModel):
        return {"model": dict(fact.section), "notes": list(fact.notes)}
    raise TypeError(f"no importer returns {type(fact).__name__}")


def _link(link: Link | None) -> str | None:
    if link is None:
        return None
    return f"NV{link.nvlinks}" if link.path == "NVLINK" else link.path


def _topology(fact: NodeTopology) -> dict[str, Any]:
    everyone = range(len(fact.gpus))
    return {
        "gpus": len(fact.gpus),
        "gpu_links": [[_link(link) for link in row] for row in fact.gpu_links],
        "nvlinks_per_gpu": [fact.nvlinks_of(gpu) for gpu in everyone],
        "nvlink_cliques": [list(group) for group in fact.cliques()],
        "slowest_pair": _link(fact.slowest_link(tuple(everyone))) if len(fact.gpus) > 1 else None,
        "nics": list(fact.nics),
        "nearest_nics": [[fact.nics[nic] for nic in fact.nearest_nics(gpu)] for gpu in everyone],
        "compute_nics": [fact.nics[nic] for nic in fact.compute_nics()],
        "numa_affinity": list(fact.numa_affinity),
        "peer_access": None if fact.peer_access is None else [list(row) for row in fact.peer_access],
    }


def _collective(fact: CollectiveRun) -> dict[str, Any]:
    return {
        "collective": fact.collective,
        "rank_count": fact.rank_count,
        "hosts": {host: [rank.rank for rank in fact.ranks if rank.host == host] for host in fact.hosts},
        "sizes_bytes": [row.size_bytes for row in fact.rows],
        "busbw_bytes_per_s": fact.plateau_busbw_bytes_per_s,
        "small_message_latency_s": fact.small_message_latency_s,
        "average_busbw_bytes_per_s": fact.average_busbw_bytes_per_s,
    }


def _pairwise(fact: PairwiseBandwidth) -> dict[str, Any]:
    known = fact.values[~np.isnan(fact.values)]
    return {
        "nodes": list(fact.names),
        "unit": "bytes/s" if fact.unit is not None else None,
        "unit_of_source": fact.unit,
        "values": [[None if np.isnan(value) else float(value) for value in row] for row in fact.values],
        "least": float(known.min()) if known.size else None,
        "greatest": float(known.max()) if known.size else None,
        "measures": fact.measures,
        "simultaneous_flows": fact.simultaneous_flows,
        "unknown_pairs": [list(pair) for pair in fact.unknown_pairs],
    }


def _megatron(fact: MegatronRun) -> dict[str, Any]:
    return {
        "model": dict(fact.model),
        "training": dict(fact.training),
        "tensor": fact.tensor,
        "pipeline": fact.pipeline,
        "context": fact.context,
        "expert": fact.expert,
        "data": fact.data,
        "layers_per_stage": None if fact.split is None else list(fact.split.layers_per_stage),
        "virtual_stages": None if fact.split is None else fact.split.chunks,
        "padded_vocab_size": fact.padded_vocab_size,
        "rank_order": list(fact.rank_order),
        "other_arguments": list(fact.others),
    }
