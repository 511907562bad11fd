"""Tables and HTML of instances, plans and results."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from pipette_milp.errors import InputError
from pipette_milp.schema.instance import load_instance
from pipette_milp.schema.plan import Plan
from pipette_milp.schema.result import SolveResult
from tests.unit.plots.cases import solved, tiny_data


def text_of(fragment: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", fragment)).split())


def balanced(fragment: str) -> bool:
    return all(
        len(re.findall(rf"<{tag}\b", fragment)) == fragment.count(f"</{tag}>")
        for tag in ("div", "table", "tr", "td", "th", "b", "span")
    )


def test_an_instance_shows_model_cluster_and_links() -> None:
    data = tiny_data()
    data["cluster"]["exclude"] = {"nodes": [], "gpus": ["node-000:1"]}
    shown = load_instance(data)._repr_html_()
    assert balanced(shown)
    text = text_of(shown)
    assert "Instance tiny-4x2-a100-flat" in text
    assert "7 x A100-SXM4-80GB on 4 nodes, 1 excluded" in text
    assert re.search(r"[\d.]+ GB/s to [\d.]+ GB/s \(nominal\)", text)


def test_links_that_were_not_measured_are_counted() -> None:
    data = tiny_data()
    data["cluster"]["network"]["inter_node"]["bandwidth"]["values"][0][1] = None
    instance = load_instance(data)
    assert "1 pairs not measured" in text_of(instance._repr_html_())
    links = instance.to_pandas("links")
    assert np.isnan(links.loc["node-000", "node-001"])
    assert int(links.isna().sum().sum()) == 5, "the diagonal and the pair"


def test_links_are_those_of_the_node_pair() -> None:
    data = tiny_data()
    link = data["cluster"]["network"]["inter_node"]
    link["measures"], link["simultaneous_flows"] = "flow", 2
    links = load_instance(data).to_pandas("links")
    assert (links.index.name, links.columns.name) == ("sender", "receiver")
    assert links.loc["node-000", "node-002"] == pytest.approx(2e9 * link["bandwidth"]["values"][0][2])


def test_links_of_one_figure_and_of_groups() -> None:
    data = tiny_data()
    link = data["cluster"]["network"]["inter_node"]
    link.pop("measures")
    link["bandwidth"] = "10 GB/s"
    instance = load_instance(data)
    assert instance.to_pandas("links").max().max() == 1e10
    assert "10 GB/s between any two nodes" in text_of(instance._repr_html_())
    names = [node.name for node in instance.cluster.nodes]
    link["bandwidth"] = {"groups": [names[:2], names[2:]], "within": "20 GB/s", "between": "5 GB/s"}
    grouped = load_instance(data)
    links = grouped.to_pandas("links")
    assert (links.iloc[0, 1], links.iloc[0, 2]) == (2e10, 5e9)
    assert "2 groups, 5 GB/s to 20 GB/s" in text_of(grouped._repr_html_())


def test_nodes_as_a_table() -> None:
    data = tiny_data()
    data["cluster"]["exclude"] = {"nodes": ["node-002"], "gpus": ["node-000:1"]}
    nodes = load_instance(data).to_pandas()
    assert nodes["excluded"].to_list() == [1, 0, 2, 0]
    assert nodes["first_gpu"].to_list() == [0, 2, 4, 6]


def test_a_plan_as_a_table_of_ranks() -> None:
    configuration = {
        "pipeline": 2, "tensor": 2, "data": 2, "micro_batch": 1, "num_micro_batches": 4,
        "layers_per_stage": [3, 3],
    }  # fmt: skip
    gpus = [4, 5, 0, 1, 2, 3, 6, 7]
    plan = Plan.model_validate({"configuration": configuration, "placement": {"gpu_of_rank": gpus}})
    ranks = plan.to_pandas()
    assert ranks.loc[5].to_dict() == {
        "stage": 1, "replica": 0, "context_index": 0, "tensor_index": 1, "gpu": 3,
    }  # fmt: skip
    assert ranks["gpu"].to_list() == gpus
    text = text_of(plan._repr_html_())
    assert "Plan for 8 GPUs" in text
    assert "4 5 0 1 2 3 6 7" in text
    assert balanced(plan._repr_html_())


def test_a_result_shows_time_gap_memory_and_why_the_others_lost() -> None:
    _, result = solved("tiny-2x2-a100-nominal", "exhaustive")
    shown = result._repr_html_()
    assert balanced(shown)
    text = text_of(shown)
    assert f"{result.simulated_s:.4f} s per iteration" in text
    assert "Gap 0.000 %" in text
    assert text.count("GiB usable") == len(result.memory.per_stage) if result.memory else False
    assert "the best" in text
    assert "+" in text


def test_memory_bars_turn_red_beyond_what_is_usable_and_stop_at_the_end() -> None:
    _, result = solved()
    assert result.memory is not None
    first = result.memory.per_stage[0]
    full = first.model_copy(update={"peak_bytes": 3.0 * first.usable_bytes})
    many = result.memory.model_copy(update={"per_stage": (full, *(first,) * 20)})
    shown = result.model_copy(update={"memory": many})._repr_html_()
    assert shown.count("#d62728") == 1
    assert "width:100.0%" in shown
    assert "and 5 stages that are less full" in text_of(shown)


def test_tables_of_a_result() -> None:
    _, result = solved("tiny-2x2-a100-nominal", "exhaustive")
    plans = result.to_pandas()
    assert plans.index.to_list() == list(range(1, len(result.plans) + 1))
    assert plans["simulated_s"].is_monotonic_increasing
    parts = [column for column in plans if str(column).endswith("_s") and str(column) in plans]
    assert {"compute_s", "optimizer_s", "simulated_s"} <= set(parts)
    configurations = result.to_pandas("configurations")
    assert len(configurations) == len(result.configurations)
    assert configurations["best_s"].min() == pytest.approx(result.simulated_s)
    memory = result.to_pandas("memory")
    assert memory.index.name == "stage"
    assert (memory["peak_bytes"] <= memory["usable_bytes"]).all()
    assert len(result.to_pandas("trace")) == len(result.trace)


def test_refused_parts_of_the_space_are_rows_too() -> None:
    instance, result = solved()
    record: dict[str, Any] = {"configuration": {"tensor": 3}, "status": "refused", "reason": "heads"}
    changed = SolveResult.model_validate({**result.model_dump(mode="json"), "configurations": [record]})
    frame = changed.to_pandas("configurations")
    assert frame[["tensor", "status", "reason"]].iloc[0].to_list() == [3, "refused", "heads"]
    assert instance.name


def test_tables_that_are_none_are_refused() -> None:
    instance, result = solved()
    with pytest.raises(InputError, match="nodes or links"):
        instance.to_pandas("gpus")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="plans, configurations, memory or trace"):
        result.to_pandas("plan")  # type: ignore[arg-type]


def test_no_plan() -> None:
    empty = SolveResult(
        instance_sha256="0" * 64,
        termination="INFEASIBLE",
        solver="auto",
        links="nominal",
        configurations=[{"configuration": {"tensor": 1}, "status": "refused", "reason": "memory: <none>"}],
    )
    text = text_of(empty._repr_html_())
    assert "No plan: INFEASIBLE" in text
    assert "memory: <none>" in text
    assert empty.to_pandas().empty
    assert empty.to_pandas("memory").empty


def test_names_are_escaped() -> None:
    data = tiny_data()
    data["name"] = data["model"]["name"] = "<script>alert(1)</script>"
    assert "<script>" not in load_instance(data)._repr_html_()


def test_reading_files_loads_no_pandas() -> None:
    code = "import sys, pipette_milp.schema.result; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
