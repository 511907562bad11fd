"""Kubernetes: the order of nodes for pods that any operator starts, one on every node of the plan.

Operators number pods in an order of their own. So each pod asks on which node it is (downward API) and takes
the number that the plan gives that node; nothing depends on where the scheduler puts which pod.
"""

from __future__ import annotations

import shlex

from pipette_milp.errors import IllegalConfigurationError, Problem
from pipette_milp.exporters.hosts import Level
from pipette_milp.exporters.launch import ARGUMENTS, Export, LaunchOptions, level_note, prepare
from pipette_milp.exporters.torchrun import NODES, launch_lines
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan

SCRIPT = "launch_kubernetes.sh"
POD = "pod_template.yaml"


def export(instance: Instance, plan: Plan, options: LaunchOptions) -> Export:
    """Node order, the part of a pod template that the plan needs, launch script, arguments and verifier.

    Raises:
        IllegalConfigurationError: the plan needs a host for every rank, or Megatron-LM cannot run it.
    """
    launch = prepare(instance, plan, options)
    ranks = launch.ranks
    if ranks.level is Level.PER_RANK:
        raise IllegalConfigurationError(
            Problem(
                "placement",
                "needs a host for every rank, a pod holds consecutive ranks: export it for slurm or openmpi",
            )
        )
    names = [host.name for host in ranks.hosts]
    pod = [
        "# To be merged into the pod template of your job: one pod a node, on the nodes of the plan.",
        f"# plan {launch.plan_hash}",
        "spec:",
        "  hostNetwork: true",
        "  affinity:",
        "    nodeAffinity:",
        "      requiredDuringSchedulingIgnoredDuringExecution:",
        "        nodeSelectorTerms:",
        "          - matchExpressions:",
        "              - key: kubernetes.io/hostname",
        "                operator: In",
        "                values:",
        *(f"                  - {name}" for name in names),
        "    podAntiAffinity:",
        "      requiredDuringSchedulingIgnoredDuringExecution:",
        "        - topologyKey: kubernetes.io/hostname",
        "          labelSelector:",
        "            matchLabels:",
        f'              pipette-plan: "{launch.plan_hash[:16]}"',
        "  containers:",
        "    - name: training",
        f'      command: ["bash", "/plan/{SCRIPT}"]',
        "      env:",
        "        - name: NODE_NAME",
        "          valueFrom:",
        "            fieldRef:",
        "              fieldPath: spec.nodeName",
        "metadata:",
        "  labels:",
        f'    pipette-plan: "{launch.plan_hash[:16]}"',
        "",
    ]
    lines = launch_lines(
        launch,
        "Kubernetes",
        host="${NODE_NAME:?set it from spec.nodeName, as pod_template.yaml does}",
        master="${MASTER_ADDR:-" + launch.first_host + "}",
        program=shlex.quote(options.program),
    )
    files = {
        **launch.files,
        SCRIPT: "\n".join(lines),
        NODES: "".join(f"{name}\n" for name in names),
        POD: "\n".join(pod),
    }
    notes = (
        level_note(ranks, "Kubernetes"),
        f"mount the files at /plan and merge {POD} into the pod template of your job ({len(names)} pods)",
        f"the first node is reached as {launch.first_host}: set MASTER_ADDR where pods have other names",
        f"arguments are in {ARGUMENTS}",
    )
    return Export(files, ranks.level, notes)
