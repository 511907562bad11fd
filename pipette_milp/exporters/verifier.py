"""The script that every rank runs at start: is this the host and the GPU that the plan says?

It stands alone (standard library only), because it runs where this package is not installed.
"""

from __future__ import annotations

import json

from pipette_milp.exporters.hosts import RankMap

NAME = "verify_placement.py"

_TEMPLATE = '''#!/usr/bin/env python3
"""Compares the host and the GPU of this rank with the plan; run once by every rank, before training.

Exit code 0: as planned, 1: not as planned, 2: cannot tell.
Option: --host NAME instead of the name of this machine.
"""
import json
import os
import socket
import subprocess
import sys

PLAN = "@HASH@"
EXPECTED = json.loads("""@EXPECTED@""")  # [host, GPU index of nvidia-smi] of every rank


def first(*names):
    for name in names:
        if os.environ.get(name, "").strip():
            return int(os.environ[name])
    return None


def devices():
    """{index: (uuid, bus id)} from nvidia-smi, empty where there is none."""
    command = ["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return {int(index): (uuid, bus) for index, uuid, bus in rows}


def main():
    rank = first("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    local = first("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
    if rank is None or local is None:
        print("cannot tell: no rank in the environment (RANK and LOCAL_RANK)", file=sys.stderr)
        return 2
    host = sys.argv[sys.argv.index("--host") + 1] if "--host" in sys.argv else socket.gethostname()
    if not 0 <= rank < len(EXPECTED):
        print(f"rank {rank}: the plan has only {len(EXPECTED)} ranks", file=sys.stderr)
        return 1
    known = devices()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    listed = [item.strip() for item in visible.split(",")] if visible else None
    if listed is not None and local >= len(listed):
        print(f"rank {rank}: local rank {local}, but CUDA_VISIBLE_DEVICES={visible}", file=sys.stderr)
        return 1
    device = str(local) if listed is None else listed[local]
    by_uuid = {uuid: index for index, (uuid, _) in known.items()}
    gpu = int(device) if device.isdigit() else by_uuid.get(device)
    planned_host, planned_gpu = EXPECTED[rank]
    names = {planned_host, planned_host.split(".")[0]}
    right = (host in names or host.split(".")[0] in names) and gpu == planned_gpu
    uuid, bus = known.get(gpu, ("unknown", "unknown"))
    text = f"rank {rank}: host {host}, GPU {gpu} (uuid {uuid}, bus {bus})"
    if right:
        print(f"{text}: as planned")
        return 0
    expected = f"host {planned_host}, GPU {planned_gpu}"
    print(f"{text}: NOT AS PLANNED, expected {expected} (plan {PLAN[:12]})", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
'''


def verifier(ranks: RankMap, plan_hash: str) -> str:
    """The text of `NAME` for a plan."""
    expected = json.dumps([list(place) for place in ranks.by_rank])
    return _TEMPLATE.replace("@HASH@", plan_hash).replace("@EXPECTED@", expected)
