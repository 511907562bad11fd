"""Every picture: what it shows, that its text can be read, and what it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipette_milp.errors import InputError, PlanError
from pipette_milp.schema.instance import Instance, load_instance
from pipette_milp.schema.plan import Plan
from pipette_milp.schema.result import ConfigurationRecord, SolveResult
from pipette_milp.solvers import solve

from .cases import solved, tiny_data

pytest.importorskip("matplotlib")

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pipette_milp import plots
from pipette_milp.plots.configurations import NOT_ALL_GPUS, grid
from pipette_milp.plots.traffic import hop_links, ring_links, tick_names

Draw = Callable[..., Figure]

OF_A_RESULT: dict[str, Draw] = {
    "timeline": lambda instance, result, **options: plots.timeline(result, **options),
    "links": plots.links,
    "placement": plots.placement,
    "memory": lambda instance, result, **options: plots.memory(result, **options),
    "convergence": lambda instance, result, **options: plots.convergence(result, **options),
    "configurations": lambda instance, result, **options: plots.configurations(result, **options),
    "breakdown": lambda instance, result, **options: plots.breakdown(result, **options),
}


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def drawn_ticks(axis: Any) -> list[Any]:
    """Labels of ticks inside the axes: matplotlib keeps some outside that it does not draw."""
    low, high = sorted(axis.get_view_interval())
    ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return [label for place, label in ticks if low <= place <= high]


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that share more than a sliver of the picture, legends included."""
    FigureCanvasAgg(figure).draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    shown = []
    for axes in figure.axes:
        labels = [*drawn_ticks(axes.xaxis), *drawn_ticks(axes.yaxis), axes.xaxis.label, axes.yaxis.label]
        legend = axes.get_legend()
        shown += [*labels, *axes.texts, *(legend.get_texts() if legend else [])]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in shown if text.get_text()]
    found = []
    for (first, a), (second, b) in itertools.combinations(boxes, 2):
        width = min(a.x1, b.x1) - max(a.x0, b.x0)
        height = min(a.y1, b.y1) - max(a.y0, b.y0)
        if width > 1.5 and height > 1.5:
            found.append((first, second))
    return found


@pytest.mark.parametrize("name", OF_A_RESULT)
@pytest.mark.parametrize("instance_name", ["tiny-4x2-a100-flat", "tiny-2x2-a100-nominal"])
def test_no_text_covers_another(name: str, instance_name: str) -> None:
    figure = OF_A_RESULT[name](*solved(instance_name))
    assert figure.axes
    assert overlaps(figure) == []


@pytest.mark.parametrize("name", OF_A_RESULT)
def test_draws_on_the_axes_it_is_given(name: str) -> None:
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    assert OF_A_RESULT[name](*solved(), axes=right) is figure
    assert right.has_data() or right.images or right.patches
    assert not left.has_data()


@pytest.mark.parametrize("name", OF_A_RESULT)
def test_a_result_without_a_plan_is_refused(name: str) -> None:
    instance, _ = solved()
    empty = SolveResult(
        instance_sha256=instance.sha256(), termination="NO_PLAN_FOUND", solver="greedy", links="nominal"
    )
    with pytest.raises(InputError, match="this result"):
        OF_A_RESULT[name](instance, empty)


@pytest.mark.parametrize("name", OF_A_RESULT)
def test_one_gpu_is_enough(name: str) -> None:
    data = tiny_data("tiny-2x2-a100-nominal")
    data["cluster"]["nodes"] = [
        {"name": "only", "gpu_type": next(iter(data["cluster"]["gpu_types"])), "gpus": 1}
    ]
    instance = load_instance(data)
    figure = OF_A_RESULT[name](instance, solve(instance, solver="greedy", threads=1))
    assert overlaps(figure) == []


def test_placement_names_stage_and_replica_of_every_gpu_and_shows_what_is_left_out() -> None:
    data = tiny_data()
    data["cluster"]["exclude"] = {"nodes": [], "gpus": ["node-000:1", "node-003:0"]}
    instance = load_instance(data)
    result = solve(instance, solver="greedy", threads=1)
    assert result.plan is not None
    (axes,) = plots.placement(instance, result).axes
    configuration = result.plan.configuration
    cells = {f"{s}:{z}" for s in range(configuration.pipeline) for z in range(configuration.data)}
    assert set(texts(axes)) == cells
    assert len(texts(axes)) == configuration.num_gpus == 6
    assert "excluded" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_links_are_those_the_plan_uses() -> None:
    """Two stages, two replicas, two tensor ranks on three nodes; checked by hand."""
    nodes = np.array([[[0, 0], [1, 1]], [[1, 1], [2, 2]]])
    assert hop_links(nodes, wraps=False) == {(0, 1), (1, 0), (1, 2), (2, 1)}
    assert ring_links(nodes) == {(0, 1), (1, 0), (1, 2), (2, 1)}
    three = np.array([[[0], [1], [0], [2]]])
    assert hop_links(three, wraps=True) == set()
    assert ring_links(three) == {(0, 1), (1, 2), (2, 0)}
    assert hop_links(np.array([[[0]], [[0]], [[3]]]), wraps=True) == {(0, 3), (3, 0)}


def test_links_are_drawn_in_the_order_of_the_stages() -> None:
    instance, result = solved("tiny-4x1-v100-slow")
    assert result.plan is not None
    axes = plots.links(instance, result).axes[0]
    first_gpu_of_stage = result.plan.placement.gpu_of_rank[:: result.plan.configuration.data]
    expected = [instance.cluster.nodes[gpu].name for gpu in first_gpu_of_stage]
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert [name for name in shown if name in expected] == expected
    shown_without_plan = [label.get_text() for label in plots.links(instance).axes[0].get_yticklabels()]
    assert shown_without_plan == [node.name for node in instance.cluster.nodes]


def test_a_plan_of_another_cluster_is_refused() -> None:
    instance, _ = solved("tiny-2x2-a100-nominal")
    _, other = solved()
    for draw in (plots.links, plots.placement):
        with pytest.raises(PlanError, match="gpu_of_rank"):
            draw(instance, other)


def test_memory_marks_what_does_not_fit() -> None:
    _, result = solved()
    assert result.memory is not None
    stages = [
        stage.model_copy(update={"peak_bytes": stage.usable_bytes * 1.5}) for stage in result.memory.per_stage
    ]
    memory = result.memory.model_copy(update={"per_stage": tuple(stages)})
    figure = plots.memory(result.model_copy(update={"memory": memory}))
    assert figure.axes[0].get_title(loc="left") == "Memory: does not fit"


def test_memory_bars_end_at_the_peak() -> None:
    _, result = solved()
    assert result.memory is not None
    axes = plots.memory(result).axes[0]
    ends = [max(bar.get_x() + bar.get_width() for bar in row) for row in zip(*axes.containers, strict=True)]
    assert ends == pytest.approx([stage.peak_bytes / 2**30 for stage in result.memory.per_stage])


def test_breakdown_bars_end_at_the_simulated_time() -> None:
    _, result = solved()
    for of in ("breakdown", "critical_path"):
        axes = plots.breakdown(result, of=of).axes[0]  # type: ignore[arg-type]
        ends: dict[int, float] = {}
        for bar in axes.patches:
            row = round(bar.get_y() + bar.get_height() / 2)
            ends[row] = max(ends.get(row, 0.0), bar.get_x() + bar.get_width())
        assert list(ends.values()) == pytest.approx([plan.simulated_s for plan in result.plans])


def record(status: str, reason: str = "", **changes: Any) -> dict[str, Any]:
    degrees = {key: changes.pop(key) for key in ("pipeline", "tensor") if key in changes}
    return {"configuration": degrees, "status": status, "reason": reason, **changes}


def test_cells_of_the_heat_map() -> None:
    _, result = solved()
    records = [
        record("solved", "the best plan", pipeline=1, tensor=1, best_s=2.0, lower_bound_s=2.0),
        record("bounded_out", pipeline=1, tensor=1, lower_bound_s=5.0),
        record("bounded_out", "no plan beats it", pipeline=2, tensor=1, lower_bound_s=3.0),
        record("refused", "memory: stage 0 needs 9 GiB", pipeline=4, tensor=1),
        record("refused", "32 heads are no multiple of tensor degree 3", tensor=3),
        record("infeasible", "no layer split and placement within memory", pipeline=1, tensor=2),
    ]
    changed = result.model_copy(
        update={"configurations": tuple(ConfigurationRecord(**fields) for fields in records)}
    )
    rows, columns, cells = grid(changed, "pipeline", "tensor")
    assert (rows, columns) == ([1, 2, 4], [1, 2, 3])
    assert (cells[1, 1].best_s, cells[1, 1].winner) == (2.0, True)
    assert (cells[2, 1].best_s, cells[2, 1].lower_bound_s) == (None, 3.0)
    assert cells[4, 1].reason == "memory: stage 0 needs 9 GiB"
    assert cells[1, 2].reason == "no layer split and placement within memory"
    assert cells[2, 2].reason == NOT_ALL_GPUS
    assert all("32 heads" in cells[row, 3].reason for row in rows)
    figure = plots.configurations(changed)
    (axes,) = figure.axes
    assert sorted(texts(axes)) == sorted(["2", "≥ 3", "M", "M", "A", "A", "A", "B", "B"])
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "32 heads are no multiple of tensor degree 3" in " ".join(legend).replace("\n", " ")
    assert overlaps(figure) == []


def test_refusals_of_several_degrees_at_once() -> None:
    _, result = solved()
    reason = "8 tensor groups are no multiple of pipeline degree {}"
    records = [
        record("solved", "the best plan", pipeline=4, tensor=1, best_s=2.0),
        record("bounded_out", pipeline=3, tensor=2, lower_bound_s=3.0),
        record("refused", reason.format("3, 5, 6, ..."), pipeline=[3, 5, 6], tensor=1),
        record("refused", reason.format("4"), pipeline=[4], tensor=2),
    ]
    changed = result.model_copy(
        update={"configurations": tuple(ConfigurationRecord(**fields) for fields in records)}
    )
    rows, columns, cells = grid(changed, "pipeline", "tensor")
    assert (rows, columns) == ([3, 4], [1, 2]), "5 and 6 have nothing to show"
    assert cells[3, 1].reason == reason.format("3, 5, 6, ...")
    assert sorted(texts(plots.configurations(changed).axes[0])) == ["2", "A", "A", "≥ 3"]


def test_convergence_of_a_heuristic_has_no_bound() -> None:
    _, result = solved()
    assert result.lower_bound_s is None
    (axes,) = plots.convergence(result).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["best plan (simulated)"]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["a.rack1.example", "b.rack1.example"], ["a", "b"]),
        (["gpu.a", "gpu.b"], ["gpu.a", "gpu.b"]),
        ([f"cluster-east-partition-{i:02d}" for i in (1, 2)], ["…1", "…2"]),
        (["$x$", "y"], [r"\$x\$", "y"]),
    ],
)
def test_names_that_fit_beside_a_tick(names: list[str], shown: list[str]) -> None:
    assert tick_names(names) == shown


def test_names_with_dollars_are_drawn_as_they_are() -> None:
    data = tiny_data("tiny-2x2-a100-nominal")
    data["cluster"]["nodes"] = [
        {"name": name, "type": data["cluster"]["nodes"][0]["type"]} for name in ("$\\frac{$", "b$")
    ]
    instance = load_instance(data)
    result = solve(instance, solver="greedy", threads=1)
    for figure in (plots.placement(instance, result), plots.links(instance, result)):
        FigureCanvasAgg(figure).draw()


def many_nodes(count: int) -> tuple[Instance, Plan]:
    """A cluster of one-GPU nodes and a plan that uses them in order."""
    data = tiny_data("tiny-2x2-a100-nominal")
    gpu = next(iter(data["cluster"]["gpu_types"]))
    data["cluster"]["nodes"] = [{"name": "n{:05d}", "count": count, "gpu_type": gpu, "gpus": 1}]
    data["model"]["layers"] = 20
    instance = load_instance(data)
    plan = Plan.model_validate(
        {
            "configuration": {
                "pipeline": 10,
                "tensor": 1,
                "data": count // 10,
                "micro_batch": 1,
                "num_micro_batches": 2,
                "layers_per_stage": [2] * 10,
            },
            "placement": {"gpu_of_rank": list(range(count))},
        }
    )
    return instance, plan


@pytest.mark.parametrize("count", [50, 400])
def test_large_clusters_lose_names_not_their_shape(count: int) -> None:
    instance, plan = many_nodes(count)
    for draw in (plots.placement, plots.links):
        figure = draw(instance, plan)
        assert overlaps(figure) == []
        assert not figure.axes[0].texts
