"""What an importer found, as a record people and programs can read."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipette_milp.importers.collective import CollectiveRun
from pipette_milp.importers.fabric import Fabric
from pipette_milp.importers.facts import PairwiseBandwidth
from pipette_milp.importers.framework_settings import FrameworkSettings
from pipette_milp.importers.huggingface import ImportedModel
from pipette_milp.importers.megatron_run import MegatronRun
from pipette_milp.importers.mpigraph import MpiGraph
from pipette_milp.importers.nccl_xml import NcclTopology
from pipette_milp.importers.node_topology import Link, NodeTopology
from pipette_milp.importers.point_to_point import PointToPoint
from pipette_milp.importers.scheduler_topology import SchedulerTopology
from pipette_milp.importers.training_log import TrainingLog


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
    if isinstance(fact, Fabric):
        return _fabric(fact)
    if isinstance(fact, SchedulerTopology):
        return _scheduler(fact)
    if isinstance(fact, NcclTopology):
        return _nccl(fact)
    if isinstance(fact, PointToPoint):
        return _point_to_point(fact)
    if isinstance(fact, TrainingLog):
        return _training_log(fact)
    if isinstance(fact, FrameworkSettings):
        return _settings(fact)
    if isinstance(fact, ImportedModel):
        return {"model": dict(fact.section), "notes": list(fact.notes)}
    raise TypeError(f"no importer returns {type(fact).__name__}")


def _fabric(fact: Fabric) -> dict[str, Any]:
    return {
        "switches": len(fact.switch_names),
        "adapters": len(fact.adapters),
        "hosts": {host: len(ports) for host, ports in fact.adapters_of.items()},
        "unresolved_adapters": [item.guid for item in fact.adapters if item.host is None],
        "groups": [
            {
                "name": group.name,
                "level": group.level,
                "switches": [fact.switch_names.get(switch, switch) for switch in group.switches],
                "nodes": list(group.nodes),
                "ports": sum(len(fact.adapters_of[node]) for node in group.nodes),
                "uplink_cables": group.cables,
                "uplink_bytes_per_s": group.bytes_per_s,
            }
            for group in (fact.all_groups or fact.groups(0))
        ],
        "parts": [len(part.nodes) for part in fact.islands()],
    }


def _scheduler(fact: SchedulerTopology) -> dict[str, Any]:
    return {
        "topology": fact.name,
        "topology_kind": fact.kind,
        "nodes": len(fact.nodes),
        "groups": {name: list(nodes) for name, nodes in fact.node_groups().items()},
        "parts": [len(part) for part in fact.components()],
        "block_sizes": list(fact.block_sizes),
        "default": fact.is_default,
    }


def _nccl(fact: NcclTopology) -> dict[str, Any]:
    return {
        "hosts": [_topology(node) for node in fact.nodes],
        "cards": [
            [
                {
                    "name": card.name,
                    "bytes_per_s": card.bytes_per_s,
                    "gpu_direct": card.gpu_direct,
                }
                for card in cards
            ]
            for cards in fact.cards
        ],
        "compute_capability": list(fact.compute_capability),
        "nvlinks_and_switches_per_gpu": [list(item) for item in fact.nvlinks],
        "is_nvlink_domain": fact.is_domain,
    }


def _point_to_point(fact: PointToPoint) -> dict[str, Any]:
    return {
        "test": fact.title,
        "metric": fact.metric,
        "hosts": list(fact.hosts),
        "device": fact.device,
        "on_gpu": fact.on_gpu,
        "both_ways": fact.both_ways,
        "rows": [list(row) for row in fact.rows],
        "plateau_bytes_per_s": fact.plateau_bytes_per_s,
        "small_message_latency_s": fact.small_message_latency_s,
    }


def _training_log(fact: TrainingLog) -> dict[str, Any]:
    return {
        "iterations": len(fact.iterations),
        "median_time_s": fact.median_time_s,
        "mean_time_s": fact.mean_time_s,
        "flop_per_s_per_gpu": fact.flop_per_s_per_gpu,
        "global_batch_size": fact.global_batch_size,
        "peak_allocated_bytes": fact.peak_allocated_bytes,
        "peak_reserved_bytes": fact.peak_reserved_bytes,
        "memory_of_rank": {
            str(item.rank): [item.peak_allocated_bytes, item.peak_reserved_bytes] for item in fact.memory
        },
        "timers_s": {name: [least, most] for name, least, most in fact.timers},
    }


def _settings(fact: FrameworkSettings) -> dict[str, Any]:
    return {
        "framework": fact.framework,
        "model": dict(fact.model),
        "training": dict(fact.training),
        "tensor": fact.tensor,
        "pipeline": fact.pipeline,
        "context": fact.context,
        "expert": fact.expert,
        "data": fact.data,
        "micro_batch": fact.micro_batch,
        "num_micro_batches": fact.num_micro_batches,
        "schedule": fact.schedule,
        "virtual_stages": fact.virtual_stages,
        "others": dict(fact.others),
    }


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
