"""Measure emulated clusters, draw plans, replay them, judge the predictions: one command, resumed by nothing.

Everything goes into the directory given by ``-o``: ``network-NAME.json``, ``instance-NAME.json``,
``plans.json`` (written before any plan runs), ``results.json``, ``table.md``, ``plot.png``.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pipette_milp.errors import InputError, PipetteError
from pipette_milp.measure.emulation.cluster import EmulatedCluster
from pipette_milp.measure.emulation.namespaces import require
from pipette_milp.measure.study.clusters import CLUSTERS, StudyCluster, study_clusters, study_instance
from pipette_milp.measure.study.plans import StudyPlan, draw_plans, missing
from pipette_milp.measure.study.table import Outcome, figures, markdown, misses, plot
from pipette_milp.schema.output import write_json_atomically, write_text_atomically
from pipette_milp.schema.plan import Configuration

NODE_NAMES = [f"node-{number:03d}" for number in range(8)]
ITERATIONS = 3


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(prog="python -m pipette_milp.measure.study", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="directory, made if absent")
    parser.add_argument("--seed", type=int, default=1, help="of clusters and plans")
    parser.add_argument("--plans", type=int, default=10, help="per cluster")
    parser.add_argument("--clusters", default=",".join(CLUSTERS), help="names, separated by commas")
    arguments = parser.parse_args()
    try:
        names = arguments.clusters.split(",")
        unknown = [name for name in names if name not in CLUSTERS]
        if unknown:
            raise InputError(f"there is no cluster {', '.join(unknown)}; there are {', '.join(CLUSTERS)}")
        if arguments.plans < 2:
            raise InputError("--plans: expected at least 2")
        require()
        missed = study(arguments.output, arguments.seed, arguments.plans, names)
    except PipetteError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(int(error.exit_code))
    for miss in missed:
        print(f"missed: {miss}", file=sys.stderr)


def study(folder: Path, seed: int, plans: int, names: list[str]) -> list[str]:
    """Everything; returns the targets missed."""
    begin = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)

    def tell(message: str) -> None:
        print(f"{time.monotonic() - begin:6.1f} s  {message}", file=sys.stderr, flush=True)

    clusters = study_clusters(seed, names)
    drawn: dict[str, list[StudyPlan]] = {}
    network_error = 0.0
    for index, cluster in enumerate(clusters):
        tell(f"{cluster.name}: measuring the network")
        document = measured(cluster)
        write_json_atomically(folder / f"network-{cluster.name}.json", document)
        error = rate_error(cluster, document)
        network_error = max(network_error, error)
        instance = study_instance(cluster.name, document["network"], NODE_NAMES, cluster.ranks_per_node)
        write_json_atomically(folder / f"instance-{cluster.name}.json", instance.model_dump(mode="json"))
        tell(f"{cluster.name}: links within {error:.2%} of their goodput; drawing plans")
        rng = np.random.default_rng([seed, 1, index])
        drawn[cluster.name] = draw_plans(cluster.name, instance, plans, rng)
    everything = [plan for of_cluster in drawn.values() for plan in of_cluster]
    write_json_atomically(folder / "plans.json", [plan.to_json() for plan in everything])
    for lack in missing(everything):
        tell(f"the draw lacks {lack}")
    outcomes: list[Outcome] = []
    for cluster in clusters:
        tell(f"{cluster.name}: starting {cluster.network.size * cluster.ranks_per_node} ranks")
        for outcome in replayed(cluster, folder, drawn[cluster.name]):
            outcomes.append(outcome)
            tell(
                f"{cluster.name} {outcome.number} {outcome.label} {outcome.placement}: "
                f"{outcome.predicted_s:.3f} s predicted, {outcome.measured_s:.3f} s measured, "
                f"{outcome.error:+.2%}"
            )
            write_json_atomically(folder / "results.json", [asdict(item) for item in outcomes])
    found = figures(outcomes)
    text = markdown(outcomes)
    write_text_atomically(folder / "table.md", text)
    plot(outcomes, folder / "plot.png")
    print(text)
    tell(f"{found.plans} plans, predicted times span a factor of {found.factor:.2f}; done")
    return misses(found, network_error)


def measured(cluster: StudyCluster) -> dict[str, Any]:
    """What `measure network` writes on the emulated cluster."""
    with EmulatedCluster(cluster.network, cluster.ranks_per_node, names=NODE_NAMES) as emulated:
        return dict(emulated.run({"job": "measure network", "options": {}}))


def rate_error(cluster: StudyCluster, document: dict[str, Any]) -> float:
    """Largest relative distance of a measured directed rate from the shaped goodput."""
    values = np.array(document["network"]["inter_node"]["bandwidth"]["values"], dtype=float)
    links = ~np.eye(cluster.network.size, dtype=bool)
    if np.isnan(values[links]).any():
        raise PipetteError(f"{cluster.name}: a link could not be measured: {document['failed']}")
    return float(np.abs(values[links] / cluster.network.goodput_bytes_per_s[links] - 1.0).max())


def replayed(cluster: StudyCluster, folder: Path, plans: list[StudyPlan]) -> Any:
    """Outcomes of the plans of a cluster, one by one, in one launch."""
    with EmulatedCluster(cluster.network, cluster.ranks_per_node, names=NODE_NAMES) as emulated:
        for plan in plans:
            path = folder / f"plan-{cluster.name}-{plan.number}.json"
            write_json_atomically(path, plan.plan.model_dump(mode="json"))
            report = emulated.run(
                {
                    "job": "replay",
                    "instance": str((folder / f"instance-{cluster.name}.json").resolve()),
                    "plan": str(path.resolve()),
                    "options": {"iterations": ITERATIONS, "warm_up": 0},
                }
            )
            report.pop("trace")
            write_json_atomically(folder / f"report-{cluster.name}-{plan.number}.json", report)
            yield Outcome(
                cluster=cluster.name,
                number=plan.number,
                origin=plan.origin,
                placement=plan.placement,
                label=label(plan.plan.configuration),
                predicted_s=report["simulated_s"],
                measured_s=report["measured_s"],
                spread=report["spread"],
                shares_egress=plan.shares_egress,
                rings_share_node=plan.rings_share_node,
            )


def label(configuration: Configuration) -> str:
    """Short name of a configuration."""
    return (
        f"p{configuration.pipeline} t{configuration.tensor} d{configuration.data} "
        f"b{configuration.micro_batch} M{configuration.num_micro_batches} {configuration.schedule} "
        f"{configuration.pipeline_transfers}"
    )


if __name__ == "__main__":
    main()
