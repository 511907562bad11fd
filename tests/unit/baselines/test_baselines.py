from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest

from pipette_milp.baselines import BASELINES, amp, megatron_rule, nemo_grid, pipette, varuna
from pipette_milp.baselines.choices import (
    Choice,
    Option,
    Resources,
    flows_per_node,
    judge,
    node_bytes_per_s,
    options,
    ranking,
)
from pipette_milp.cost.build import CostModel
from pipette_milp.errors import InputError
from pipette_milp.legality import check_legal
from pipette_milp.plans import default_cells
from pipette_milp.schema.instance import load_instance
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers import solve
from tests.conftest import INSTANCES
from tests.instance_cases import costs as small_costs
from tests.instance_cases import instance as small_instance


@cache
def large() -> CostModel:
    """GPT-18B on 16 nodes of 8 in 4 pods."""
    return CostModel.of(load_instance(INSTANCES / "gpt-18b-16x8-a100-pods.json"))


@cache
def middle() -> CostModel:
    """4 nodes of 2 GPUs, links that differ by a few per cent."""
    return CostModel.of(load_instance(INSTANCES / "tiny-4x2-a100-flat.json"))


@cache
@cache
def tight() -> CostModel:
    """2 nodes of 2 GPUs with so little memory that AMP's first choice does not fit, and a later one does."""
    for memory in range(40, 160):
        changes = {
            "cluster/gpu_types/gpu/memory": f"{memory / 10} GiB",
            "model/hidden_size": 2048,
            "model/ffn_hidden_size": 8192,
        }
        costs = CostModel.of(small_instance(changes))
        fits = (
            [judge(costs, choice).fits for choice in first("amp", costs)]
            if enumerate_space(costs).families
            else []
        )
        if any(fits) and not fits[0]:
            return costs
    raise AssertionError("no such memory")


def resources(seed: int = 0) -> Resources:
    return Resources(np.random.default_rng(seed))


def first(name: str, costs: CostModel, number: int = 10, seed: int = 0) -> list[Choice]:
    return list(itertools.islice(ranking(name)(costs, resources(seed)), number))


def option_of(costs: CostModel, pipeline: int, tensor: int, micro_batch: int) -> Option:
    return next(
        option
        for option in options(costs)
        if (option.configuration.pipeline, option.configuration.tensor, option.configuration.micro_batch)
        == (pipeline, tensor, micro_batch)
    )


@pytest.mark.parametrize("name", BASELINES)
def test_choices_are_legal_and_cover_the_cluster(name: str) -> None:
    costs = middle()
    choices = first(name, costs)
    assert choices
    for choice in choices:
        check_legal(costs, choice.configuration)
        assert choice.node_of_cell.shape == (choice.configuration.pipeline, choice.configuration.data)
        held = np.bincount(choice.node_of_cell.reshape(-1), minlength=4) * choice.configuration.tensor
        assert held.tolist() == costs.cluster.gpus_per_node.tolist()
        assert judge(costs, choice).simulated_s > 0
    again = first(name, costs)
    assert [choice.configuration for choice in again] == [choice.configuration for choice in choices]


@pytest.mark.parametrize("name", [name for name in BASELINES if name not in ("random", "varuna")])
def test_predictions_rise_along_the_ranking(name: str) -> None:
    choices = first(name, middle())
    predicted = [choice.predicted_s for choice in choices if choice.predicted_s is not None]
    assert len(predicted) == len(choices)
    if name == "megatron-rule":  # within one model-parallel size
        sizes = [choice.configuration.pipeline * choice.configuration.tensor for choice in choices]
        assert sizes == sorted(sizes)
        predicted = predicted[: sizes.count(sizes[0])]
    if name == "nemo-grid":  # those that do not fit come last
        predicted = [choice.predicted_s or 0.0 for choice in choices if judge(middle(), choice).fits]
    assert predicted == sorted(predicted)


def test_house_options_are_those_of_a_careful_user() -> None:
    for option in options(large()):
        configuration = option.configuration
        assert configuration.recompute == "none"
        assert configuration.sequence_parallel == (configuration.tensor > 1)
        assert configuration.data_sharding == ("optimizer" if configuration.data > 1 else "none")
        assert configuration.num_gpus == 128


def test_options_keep_to_the_limits_of_the_instance() -> None:
    limited = small_costs(search={"tensor": [2], "micro_batch": [2, 4]})
    found = {(o.configuration.tensor, o.configuration.micro_batch) for o in options(limited)}
    assert found == {(2, 2), (2, 4)}
    plain = small_costs(training={"recompute": "full", "data_sharding": "none", "sequence_parallel": False})
    for option in options(plain):
        assert option.configuration.recompute == "full"
        assert not option.configuration.sequence_parallel


def test_idle_gpus_are_left_only_where_degrees_do_not_divide() -> None:
    costs = small_costs({"cluster/nodes/0/count": 3}, search={"use_all_gpus": False})
    data = {
        (option.configuration.pipeline, option.configuration.tensor): option.configuration.data
        for option in options(costs)
    }
    assert data[1, 2] == max(d for d in range(1, 4) if 16 % d == 0)
    assert data[4, 1] == 1


# ------------------------------------------------------------------ Megatron-LM's rule
def test_the_rule_takes_the_smallest_size_that_fits_tensor_first() -> None:
    choices = first("megatron-rule", large(), 40)
    sizes = [(c.configuration.tensor, c.configuration.pipeline) for c in choices]
    smallest = sizes[0]
    fitting = {(o.configuration.tensor, o.configuration.pipeline) for o in options(large()) if o.fits}
    assert min(t * p for t, p in fitting if p == 1 or t == 8) == smallest[0] * smallest[1]
    assert all(p == 1 or t == 8 for t, p in sizes)
    for choice in choices:
        assert judge(large(), choice).fits
        cells = default_cells(large().cluster, choice.configuration)
        assert cells is not None
        assert np.array_equal(choice.node_of_cell, cells)


def test_equation_1() -> None:
    option = option_of(large(), 4, 8, 2)
    stage = option.forward_s + option.backward_s
    per_replica = 512 // option.configuration.data
    assert megatron_rule.micro_batch_time_s(option) == pytest.approx(
        (per_replica / 2 + 4 - 1) * stage.max(), rel=1e-12
    )


# ------------------------------------------------------------------ AMP
def test_amp_by_hand() -> None:
    """2 nodes of 2, two stages of one tensor rank, one replica on each GPU of a node."""
    costs = small_costs()
    option = option_of(costs, 2, 1, 2)
    cells = np.array([[0, 0], [1, 1]])
    stage = option.forward_s + option.backward_s
    micro_batches = 16 // 2 // 2
    inter, intra = 20e9, 200e9
    hop = 2 * 512 * 1024 * 2 / inter
    parameters = amp.stage_parameters(option)
    expected = (micro_batches - 1) * stage.max() + stage.sum() + 2 * hop
    expected += (2 * (2 - 1) / 2 * parameters * 4.0 / intra).max()
    assert amp.iteration_s(option, cells, as_published=False) == pytest.approx(expected, rel=1e-12)
    published = 3 * option.forward_s
    weights = 12 * 1024**2 * 3 + 1024 * 50257
    expected = (micro_batches - 1) * published.max() + published.sum() + 4 * 2 * 512 * 1024 / inter
    expected += 2 * (2 - 1) / 2 * weights * 4.0 / intra
    assert amp.iteration_s(option, cells, as_published=True) == pytest.approx(expected, rel=1e-12)


def test_only_the_closing_edge_counts_in_amps_code() -> None:
    """A ring 0, 0, 1, 1: every second edge crosses; with 0, 1, 1, 0 the closing edge stays inside a node."""
    costs = small_costs()
    option = option_of(costs, 1, 1, 2)
    crossing, closing_inside = np.array([[0, 0, 1, 1]]), np.array([[0, 1, 1, 0]])
    paper = [amp.iteration_s(option, cells, as_published=False) for cells in (crossing, closing_inside)]
    code = [amp.iteration_s(option, cells, as_published=True) for cells in (crossing, closing_inside)]
    assert paper[0] == pytest.approx(paper[1], rel=1e-12)
    assert code[1] < code[0]


def test_amps_split_makes_the_slowest_stage_as_fast_as_it_goes() -> None:
    option = option_of(large(), 4, 4, 1)
    split = amp.least_busy_split(option)
    assert split.sum() == large().instance.model.layers
    best = min(
        float((o.forward_s + o.backward_s).max())
        for shift in itertools.product((-1, 0, 1), repeat=4)
        if sum(shift) == 0 and min(split + np.array(shift)) > 0
        for o in [option.with_layers(split + np.array(shift))]
    )
    chosen = option.with_layers(split)
    assert float((chosen.forward_s + chosen.backward_s).max()) == pytest.approx(best, rel=1e-12)


def test_amp_recommends_what_does_not_fit() -> None:
    """Its model knows no memory: on tight GPUs its first choices run out of it."""
    judged = [judge(tight(), choice) for choice in first("amp", tight(), 100)]
    assert not all(one.fits for one in judged)


# ------------------------------------------------------------------ Varuna
def test_varuna_uses_pipeline_and_data_only_and_the_largest_micro_batch_first() -> None:
    choices = first("varuna", large(), 100)
    assert all(choice.configuration.tensor == 1 for choice in choices)
    assert all(choice.configuration.recompute == "full" for choice in choices)
    head: dict[int, int] = {}
    for choice in choices:
        head.setdefault(choice.configuration.pipeline, choice.configuration.micro_batch)
    for pipeline, micro_batch in head.items():
        assert micro_batch == max(
            c.configuration.micro_batch for c in choices if c.configuration.pipeline == pipeline
        )


def test_varunas_estimate_misses_what_is_in_flight() -> None:
    option = option_of(large(), 8, 1, 1)
    assert varuna.estimated_bytes(option) < option.memory_bytes.max()


# ------------------------------------------------------------------ Pipette
def model(pipeline: int, number: int, *, as_published: bool) -> pipette.LatencyModel:
    link = np.array([[0, 2, 4, 8], [2, 0, 8, 4], [4, 8, 0, 2], [8, 4, 2, 0]], dtype=float)
    return pipette.LatencyModel(
        pipeline=pipeline,
        num_micro_batches=number,
        compute_s=1.0,
        hop_bytes=4.0,
        ring_bytes=np.full(pipeline, 8.0),
        intra_s=0.25,
        link_bytes_per_s=link,
        as_published=as_published,
    )


def test_pipettes_formula_by_hand() -> None:
    order = np.array([0, 1, 2, 3])  # pipelines 0-1 and 2-3 over links of 2, rings 0-2 and 1-3 over links of 4
    expected = 6 / 2 * (2 * 1.0 + 2 * 4 / 2) + 1 * 1.0 + 2 * (1 / 2) * 8 / 4 + 0.25
    assert model(2, 6, as_published=False).iteration_s(order) == pytest.approx(expected)
    assert model(2, 6, as_published=True).iteration_s(order) == pytest.approx(expected)


def test_the_published_formula_loses_micro_batches() -> None:
    """7 micro-batches on 2 stages cost the code as much as 6."""
    order = np.arange(4)
    seven, six = (model(2, n, as_published=True).iteration_s(order) for n in (7, 6))
    assert seven == six
    seven, six = (model(2, n, as_published=False).iteration_s(order) for n in (7, 6))
    assert seven > six


def test_fewer_micro_batches_than_stages() -> None:
    order = np.arange(4)
    expected = (4 * 1.0 + 2 * 4 * (1 / 2 + 1 / 8 + 1 / 2)) + 2 * 1.0 + 0.25
    assert model(4, 3, as_published=True).iteration_s(order) == pytest.approx(expected)


def test_the_published_formula_sees_the_first_ring_only() -> None:
    bad = np.array([0, 0, 1, 3])  # the second stage's ring crosses a link of 4, the first one's one of 2
    order = np.array([0, 2, 1, 3])
    assert bad.shape == order.shape
    one, other = (model(2, 2, as_published=flag) for flag in (True, False))
    slow_second = np.array([0, 2, 3, 1])
    assert other.iteration_s(slow_second) >= one.iteration_s(slow_second)
    different = pipette.LatencyModel(**{**vars(one), "ring_bytes": np.array([8.0, 800.0])})
    assert different.iteration_s(order) == one.iteration_s(order)


@pytest.mark.parametrize("as_published", [True, False])
def test_no_order_is_below_the_floor_and_annealing_finds_the_best(as_published: bool) -> None:
    formula = model(2, 6, as_published=as_published)
    values = [formula.iteration_s(np.array(order)) for order in itertools.permutations(range(4))]
    assert formula.floor_s() <= min(values)
    order, value = pipette.annealed(formula, 4, resources(3))
    assert value == pytest.approx(min(values))
    assert formula.iteration_s(order) == value


def test_best_first_gives_the_order_of_annealing_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same walk for every configuration; here the walk keeps the nodes in order."""

    def kept(formula: pipette.LatencyModel, num_nodes: int, _: Resources) -> tuple[np.ndarray, float]:
        order = np.arange(num_nodes)
        return order, formula.iteration_s(order)

    monkeypatch.setattr(pipette, "annealed", kept)
    ranked = first("pipette", large(), 1000)
    predicted = [choice.predicted_s for choice in ranked]
    assert predicted == sorted(predicted, key=lambda value: value or 0.0)
    wanted = [
        o for o in options(large())
        if pipette.considered(o) and o.memory_bytes.max() <= large().usable_bytes_of_type[0]
    ]  # fmt: skip
    assert len(ranked) == len(wanted)


def test_pipettes_stages_are_whole_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipette, "STEPS", 50)
    for choice in first("pipette", large(), 3):
        for stage in range(choice.configuration.pipeline):
            others = np.delete(choice.node_of_cell, stage, axis=0)
            assert not set(choice.node_of_cell[stage]) & set(others.reshape(-1))


def test_soft_limits() -> None:
    assert pipette.soft_limit_bytes(large()) == 70_000 * 2**20
    v100 = CostModel.of(load_instance(INSTANCES / "tiny-4x1-v100-slow.json"))
    assert pipette.soft_limit_bytes(v100) == 20_000 * 2**20


def test_a_stop_ends_the_annealing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    original = pipette.LatencyModel.iteration_s

    def counted(self: pipette.LatencyModel, order: np.ndarray) -> float:
        nonlocal calls
        calls += 1
        return original(self, order)

    monkeypatch.setattr(pipette.LatencyModel, "iteration_s", counted)
    stopped = Resources(np.random.default_rng(0), lambda: True)
    assert len(list(itertools.islice(pipette.rank(large(), stopped), 10))) == 10
    assert calls < 1000


# ------------------------------------------------------------------ NeMo grid
@pytest.mark.parametrize(("billions", "tensor"), [(0.5, (1, 2)), (18.0, (1, 2, 4)), (175.0, (8,))])
def test_rows_of_the_grid(billions: float, tensor: tuple[int, ...]) -> None:
    row = next(grid for grid in nemo_grid.GRID_80GB if billions <= grid.up_to_billions)
    assert row.tensor == tensor


def test_the_grid_is_tried_and_the_fastest_wins() -> None:
    grid = nemo_grid.grid_of(large())
    assert grid is not None
    judged = [judge(large(), choice) for choice in first("nemo-grid", large(), 1000)]
    fitting = [one.simulated_s for one in judged if one.fits]
    assert fitting == sorted(fitting)
    assert judged[0].simulated_s == min(fitting)
    for one in judged:
        configuration = one.choice.configuration
        assert configuration.tensor in (1, 2, 4)
        assert 4 <= configuration.tensor * configuration.pipeline <= 8


def test_a_model_beyond_the_table_gets_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemo_grid, "GRID_80GB", nemo_grid.GRID_80GB[:1])
    assert first("nemo-grid", large()) == []


# ------------------------------------------------------------------ what they know
def test_mean_link_and_flows() -> None:
    costs = middle()
    pair = costs.cluster.pair_bytes_per_s
    assert node_bytes_per_s(costs)[1] == pytest.approx(
        min((pair[1, 0] + pair[1, 2] + pair[1, 3]) / 3, costs.cluster.egress_bytes_per_s[1])
    )
    assert flows_per_node(large()) == 4
    assert flows_per_node(small_costs()) == 2
    assert node_bytes_per_s(small_costs({"cluster/nodes/0/count": 1}))[0] == 200e9


# ------------------------------------------------------------------ as solvers
def test_choices_that_run_out_of_memory_are_counted() -> None:
    result = solve(tight().instance, solver="amp", threads=1, keep=1)
    failed = next(n for n, choice in enumerate(first("amp", tight())) if judge(tight(), choice).fits)
    assert failed > 0
    assert result.plan is not None
    assert result.lower_bound_s is None
    assert any(f"the first {failed} choice" in warning for warning in result.warnings)
    taken = first("amp", tight())[failed]
    assert result.plan.configuration == taken.configuration
    assert result.simulated_s == pytest.approx(judge(tight(), taken).simulated_s, rel=1e-9)


@pytest.mark.parametrize("name", ["amp:faithful", "pipette:published", "annealing:as published"])
def test_an_unknown_variant_names_those_there_are(name: str) -> None:
    with pytest.raises(InputError, match="as-published"):
        solve(middle().instance, solver=name, threads=1)
