"""Instances, plans and results as pandas tables. pandas is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pipette_milp.errors import InputError
from pipette_milp.schema.link_groups import LinkGroups
from pipette_milp.schema.plan import Configuration, Plan

if TYPE_CHECKING:
    import pandas as pd

    from pipette_milp.schema.instance import Instance
    from pipette_milp.schema.result import SolveResult

InstanceTable = Literal["nodes", "links"]
ResultTable = Literal["plans", "configurations", "memory", "trace"]


def instance_frame(instance: Instance, table: InstanceTable) -> pd.DataFrame:
    """See `Instance.to_pandas`."""
    if table == "nodes":
        return _nodes(instance)
    if table == "links":
        return _links(instance)
    raise InputError(f"there is no table {table!r} of an instance: expected nodes or links")


def result_frame(result: SolveResult, table: ResultTable) -> pd.DataFrame:
    """See `SolveResult.to_pandas`."""
    import pandas as pd

    if table == "plans":
        rows = [
            {
                **_configuration_row(plan.configuration),
                "simulated_s": plan.simulated_s,
                "lower_bound_s": plan.lower_bound_s,
                "peak_bytes": None if plan.memory is None else plan.memory.peak_bytes,
                "tokens_per_s": None if plan.throughput is None else plan.throughput.tokens_per_s,
                "mfu": None if plan.throughput is None else plan.throughput.mfu,
                "indistinguishable": plan.indistinguishable,
                **({} if plan.critical_path is None else plan.critical_path.model_dump()),
            }
            for plan in result.plans
        ]
        return pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1, name="rank"))
    if table == "configurations":
        return pd.DataFrame(
            [
                {
                    **(
                        _configuration_row(record.configuration)
                        if isinstance(record.configuration, Configuration)
                        else record.configuration
                    ),
                    "status": record.status,
                    "reason": record.reason,
                    "lower_bound_s": record.lower_bound_s,
                    "bound_kind": record.bound_kind,
                    "bound_by": record.bound_by,
                    "best_s": record.best_s,
                }
                for record in result.configurations
            ]
        )
    if table == "memory":
        stages = () if result.memory is None else result.memory.per_stage
        frame = pd.DataFrame([stage.model_dump() for stage in stages])
        frame.index.name = "stage"
        return frame
    if table == "trace":
        return pd.DataFrame([point.model_dump() for point in result.trace])
    raise InputError(
        f"there is no table {table!r} of a result: expected plans, configurations, memory or trace"
    )


def plan_frame(plan: Plan) -> pd.DataFrame:
    """See `Plan.to_pandas`."""
    import numpy as np
    import pandas as pd

    configuration = plan.configuration
    ranks = np.arange(len(plan.placement.gpu_of_rank))
    cells, inside = np.divmod(ranks, configuration.tensor * configuration.context)
    stages, replicas = np.divmod(cells, configuration.data)
    return pd.DataFrame(
        {
            "stage": stages,
            "replica": replicas,
            "context_index": inside // configuration.tensor,
            "tensor_index": inside % configuration.tensor,
            "gpu": plan.placement.gpu_of_rank,
        },
        index=pd.Index(ranks, name="rank"),
    )


def _configuration_row(configuration: Configuration) -> dict[str, Any]:
    """Plain values only: stages become their layers, as text."""
    row = configuration.model_dump(exclude={"stages", "rank_order", "overlap", "layers_per_stage"})
    return {**row, "layers_per_stage": " ".join(map(str, configuration.layers_per_stage))}


def _nodes(instance: Instance) -> pd.DataFrame:
    import pandas as pd

    excluded = instance.cluster.excluded_gpu_ids()
    rows, first = [], 0
    for node in instance.cluster.nodes:
        ids = range(first, first + node.gpus)
        out = sum(gpu in excluded for gpu in ids)
        rows.append(
            {
                "node": node.name,
                "gpu_type": node.gpu_type,
                "gpus": node.gpus,
                "excluded": out,
                "first_gpu": first,
            }
        )
        first += node.gpus
    return pd.DataFrame(rows).set_index("node")


def _links(instance: Instance) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    names = [node.name for node in instance.cluster.nodes]
    link = instance.cluster.network.inter_node
    values = np.full((len(names), len(names)), np.nan)
    if link is not None:
        if isinstance(link.bandwidth, LinkGroups):
            group_of = link.bandwidth.group_of()
            values = np.array(
                [[link.bandwidth.bytes_per_s(group_of[a], group_of[b]) for b in names] for a in names]
            )
        elif isinstance(link.bandwidth, tuple):
            values = np.array(link.bandwidth, dtype=float)
        else:
            values[:] = link.bandwidth
        values = values * link.flows_per_pair
        np.fill_diagonal(values, np.nan)
    return pd.DataFrame(
        values, index=pd.Index(names, name="sender"), columns=pd.Index(names, name="receiver")
    )
