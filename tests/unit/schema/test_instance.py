from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from pipette_milp.errors import ExitCode, InputError
from pipette_milp.schema.instance import Instance, load_instance
from tests.conftest import shared_data


def small() -> dict[str, Any]:
    """Three nodes of two GPUs, matrix of flows."""
    return {
        "schema_version": 1,
        "name": "small",
        "provenance": "written by hand",
        "model": {
            "name": "toy",
            "layers": 6,
            "hidden_size": 512,
            "ffn_hidden_size": 2048,
            "attention_heads": 8,
            "vocab_size": 1000,
            "sequence_length": 256,
            "gated_mlp": False,
            "tied_embeddings": True,
            "position_embedding": "learned",
            "normalization": "layernorm",
            "biases": True,
        },
        "training": {"global_batch_size": 16, "precision": "bf16"},
        "cluster": {
            "gpu_types": {
                "A100": {
                    "memory": "79.1 GiB",
                    "peak_flops": {"bf16": "312 TFLOP/s"},
                    "memory_bandwidth": "2039 GB/s",
                }
            },
            "nodes": [{"name": f"n{i}", "gpu_type": "A100", "gpus": 2} for i in range(3)],
            "network": {
                "intra_node": {"bandwidth": "300 GB/s", "latency": "4 us"},
                "inter_node": {
                    "bandwidth": {"unit": "GB/s", "values": [[None, 20, 21], [19, None, 18], [22, 20, None]]},
                    "measures": "flow",
                    "simultaneous_flows": 2,
                    "latency": "8 us",
                    "source": "measured",
                },
            },
        },
    }


def with_change(path: str, value: Any) -> dict[str, Any]:
    data = small()
    target: Any = data
    *parents, last = path.split("/")
    for part in parents:
        target = target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
    if isinstance(target, list):
        target[int(last)] = value
    elif value is ...:
        del target[last]
    else:
        target[last] = value
    return data


def problems(data: Any) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        load_instance(data)
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    return {problem.path: problem.message for problem in caught.value.problems}


def test_defaults_of_the_contract() -> None:
    instance = load_instance(small())
    assert (instance.model.kv_heads, instance.model.head_dim, instance.model.max_positions) == (8, 64, 256)
    training = instance.training
    assert (training.gradient_dtype, training.data_sharding, training.framework) == (
        "fp32",
        ("none",),
        "megatron",
    )
    assert training.transfers_for("1f1b") == ("exchange",)
    assert training.transfers_for("interleaved") == ("async",)
    search = instance.search
    assert (search.context, search.virtual_stages, search.tensor) == ((1,), (1,), None)
    assert (search.memory_reserve, search.use_all_gpus) == (0.03, True)


def test_quantities_are_si_and_matrices_keep_sender_and_receiver() -> None:
    cluster = load_instance(small()).cluster
    assert cluster.gpu_types["A100"].memory == pytest.approx(79.1 * 2**30)
    inter_node = cluster.network.inter_node
    assert inter_node is not None
    assert isinstance(inter_node.bandwidth, tuple)
    assert inter_node.bandwidth[0][2] == 21e9
    assert inter_node.bandwidth[2][0] == 22e9
    assert inter_node.bandwidth[1][1] is None
    assert inter_node.flows_per_pair == 2
    assert cluster.scale_up_of(cluster.nodes[0]).per_gpu_bandwidth == 300e9


def test_round_trip_and_hash() -> None:
    instance = load_instance(small())
    again = load_instance(json.loads(json.dumps(instance.model_dump(mode="json"))))
    assert again == instance
    assert again.sha256() == instance.sha256()
    in_other_units = with_change("cluster/network/intra_node/bandwidth", "2400 Gbit/s")
    assert load_instance(in_other_units).sha256() == instance.sha256()
    assert load_instance(with_change("model/layers", 8)).sha256() != instance.sha256()


def test_short_and_long_form_of_nodes_mean_the_same() -> None:
    data = small()
    data["cluster"]["node_types"] = {
        "box": {"gpus": ["A100", 2], "scale_up": {"per_gpu_bandwidth": "300 GB/s", "latency": "4 us"}}
    }
    data["cluster"]["nodes"] = [{"name": "n{}", "count": 3, "type": "box"}]
    del data["cluster"]["network"]["intra_node"]
    cluster = load_instance(data).cluster
    short = load_instance(small()).cluster
    assert [(n.name, n.gpu_type, n.gpus) for n in cluster.nodes] == [
        (n.name, n.gpu_type, n.gpus) for n in short.nodes
    ]
    assert cluster.scale_up_of(cluster.nodes[2]) == short.scale_up_of(short.nodes[2])
    data["cluster"]["nodes"][0]["name"] = "rack-{:03d}"
    assert [node.name for node in load_instance(data).cluster.nodes] == ["rack-000", "rack-001", "rack-002"]


def test_nodes_of_different_size_and_single_gpu_nodes() -> None:
    data = small()
    data["cluster"]["nodes"][1]["gpus"] = 1
    cluster = load_instance(data).cluster
    assert cluster.num_gpus == 5
    for node in data["cluster"]["nodes"]:
        node["gpus"] = 1
    del data["cluster"]["network"]["intra_node"]
    cluster = load_instance(data).cluster
    assert cluster.scale_up_of(cluster.nodes[0]).latency == 0.0


def test_exclusions_do_not_move_ids() -> None:
    data = with_change("cluster/exclude", {"nodes": ["n0"], "gpus": ["n1:1"]})
    assert load_instance(data).cluster.excluded_gpu_ids() == {0, 1, 3}


def test_missing_pairs_are_listed_and_filled() -> None:
    data = with_change("cluster/network/inter_node/bandwidth/values/0", [None, None, 21])
    instance = load_instance(data)
    assert instance.missing_pairs() == [("n0", "n1")]
    filled = instance.with_missing(15e9)
    assert filled.missing_pairs() == []
    assert filled.sha256() != instance.sha256()
    assert load_instance(filled.model_dump(mode="json")) == filled
    excluded = copy.deepcopy(data)
    excluded["cluster"]["exclude"] = {"nodes": ["n1"]}
    assert load_instance(excluded).missing_pairs() == []
    excluded["cluster"]["exclude"] = {"gpus": ["n1:0", "n1:1"]}
    assert load_instance(excluded).missing_pairs() == []
    excluded["cluster"]["exclude"] = {"gpus": ["n1:0"]}
    assert load_instance(excluded).missing_pairs() == [("n0", "n1")]


def test_descriptive_detail_is_a_warning() -> None:
    data = small()
    data["cluster"]["node_types"] = {
        "box": {"gpus": ["A100", 2], "nics": {"count": 2, "bandwidth": "25 GB/s", "of_gpu": [0, 1]}}
    }
    data["cluster"]["network"]["rails"] = [["n0", "n1"]]
    warnings = load_instance(data).warnings
    assert len(warnings) == 2
    assert "node_types.box.nics.of_gpu" in warnings[0]
    assert "rails" in warnings[1]
    assert load_instance(small()).warnings == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cluster/domains", [{"name": "x", "nodes": ["n0"]}]),
        ("cluster/network/by_size", [{"bytes": 65536, "efficiency": 0.3}]),
        ("cluster/network/inter_node/bandwidth", {"snapshots": []}),
        ("cluster/node_types", {"box": {"gpus": ["A100", "H100"]}}),
        ("search/fix", {"stage_of_node": {"n0": 0}}),
    ],
)
def test_what_nothing_models_yet_is_refused(path: str, value: Any) -> None:
    found = problems(with_change(path, value))
    prefix = path.replace("/", ".")
    assert any(
        where.startswith(prefix) and message.startswith("not supported yet")
        for where, message in found.items()
    ), found


def test_nodes_of_two_gpu_types() -> None:
    data = with_change("cluster/nodes/1/gpu_type", "H100")
    data["cluster"]["gpu_types"]["H100"] = data["cluster"]["gpu_types"]["A100"]
    kinds = [node.gpu_type for node in load_instance(data).cluster.nodes]
    assert kinds == ["A100", "H100", "A100"]
    data["cluster"]["gpu_types"]["H100"] = {
        **data["cluster"]["gpu_types"]["A100"],
        "peak_flops": {"fp8": "1979 TFLOP/s"},
    }
    assert "no entry for precision 'bf16'" in problems(data)["cluster.gpu_types.H100.peak_flops"]


@pytest.mark.parametrize(
    ("path", "value", "where", "says"),
    [
        ("model/hiden_size", 3, "model.hiden_size", 'did you mean "hidden_size"'),
        ("modle", {}, "modle", 'did you mean "model"'),
        ("schema_version", 2, "schema_version", "1"),
        ("model/layers", ..., "model.layers", "is required"),
        ("model/layers", 0, "model.layers", "greater than or equal to 1"),
        ("model/layers", "six", "model.layers", "integer"),
        ("model/attention_heads", 7, "model.head_dim", "do not divide"),
        ("model/gated_mlp", "yes", "model.gated_mlp", "boolean"),
        ("training/sequence_parallel", [0], "training.sequence_parallel[0]", "boolean"),
        ("training/pipeline_transfers", "fast", "training.pipeline_transfers", "'exchange' or 'async'"),
        ("model/kv_heads", 3, "model.kv_heads", "divisor of the 8 attention heads"),
        ("model/max_positions", 128, "model.max_positions", "shorter than sequence_length 256"),
        ("training/global_batch_size", 0, "training.global_batch_size[0]", "greater than or equal to 1"),
        ("training/global_batch_size", [], "training.global_batch_size", "empty list"),
        ("training/recompute", ["none", "none"], "training.recompute", "more than once"),
        ("training/precision", "fp16", "cluster.gpu_types.A100.peak_flops", "no entry for precision 'fp16'"),
        ("training/gradient_dtype", "fp16", "training.gradient_dtype", "do not go with bf16"),
        ("cluster/nodes", [], "cluster.nodes", "at least one node"),
        ("cluster/nodes/1/gpus", 0, "cluster.nodes[1].gpus", "greater than or equal to 1"),
        ("cluster/nodes/1/name", "n0", "cluster.nodes", "'n0' occurs more than once"),
        ("cluster/nodes/1/gpu_type", "B7", "cluster.nodes[1].gpu_type", "declared are 'A100'"),
        ("cluster/nodes/1/gpu_type", ..., "cluster.nodes[1]", '"gpu_type" and "gpus"'),
        ("cluster/nodes/1/count", 4, "cluster.nodes[1].name", "counter"),
        ("cluster/gpu_types/A100/memory", "80 GB/s", "cluster.gpu_types.A100.memory", "measures bytes/s"),
        ("cluster/gpu_types/A100/peak_flops", {"int4": 1}, "cluster.gpu_types.A100.peak_flops", "bf16"),
        (
            "cluster/network/intra_node/bandwidth",
            "3 gb/s",
            "cluster.network.intra_node.bandwidth",
            "in doubt",
        ),
        ("cluster/network/intra_node", ..., "cluster.network.intra_node", "is required"),
        ("cluster/network/inter_node", ..., "cluster.network.inter_node", "there are 3 nodes"),
        ("cluster/network/inter_node/measures", ..., "cluster.network.inter_node.measures", "is required"),
        (
            "cluster/network/inter_node/simultaneous_flows",
            ...,
            "cluster.network.inter_node.simultaneous_flows",
            "how many",
        ),
        (
            "cluster/network/inter_node/measures",
            "node_pair",
            "cluster.network.inter_node.simultaneous_flows",
            "leave",
        ),
        ("cluster/network/inter_node/bandwidth", -3, "cluster.network.inter_node.bandwidth", "not negative"),
        (
            "cluster/network/inter_node/bandwidth",
            [[1]],
            "cluster.network.inter_node.bandwidth",
            "needs its unit",
        ),
        (
            "cluster/network/inter_node/bandwidth/unit",
            "gb/s",
            "cluster.network.inter_node.bandwidth.unit",
            "in doubt",
        ),
        (
            "cluster/network/inter_node/bandwidth/values/1",
            [1, None],
            "cluster.network.inter_node.bandwidth.values[1]",
            "expected a square",
        ),
        (
            "cluster/network/inter_node/bandwidth/values",
            [[None, 1], [1, None]],
            "cluster.network.inter_node.bandwidth.values",
            "expected one per node, 3",
        ),
        (
            "cluster/network/inter_node/bandwidth/values/1",
            [-1, None, 0],
            "cluster.network.inter_node.bandwidth.values[1][2]",
            "null = not measured",
        ),
        (
            "cluster/network/inter_node/bandwidth/values/1",
            [float("nan"), None, 1],
            "cluster.network.inter_node.bandwidth.values[1][0]",
            "nan",
        ),
        (
            "cluster/network/inter_node/bandwidth/values/1",
            [1e305, None, "2"],
            "cluster.network.inter_node.bandwidth.values[1][0]",
            "finite",
        ),
        ("cluster/exclude", {"nodes": ["x"]}, "cluster.exclude.nodes[0]", "there is no node 'x'"),
        ("cluster/exclude", {"gpus": ["n0:2"]}, "cluster.exclude.gpus[0]", "has GPUs 0 to 1"),
        ("cluster/exclude", {"gpus": ["n0"]}, "cluster.exclude.gpus[0]", "node:local index"),
        ("cluster/exclude", {"nodes": ["n0", "n1", "n2"]}, "cluster.exclude", "no GPU to use"),
        (
            "search/layers_per_stage",
            [3, 2],
            "search.layers_per_stage",
            "adds up to 5 layers, the model has 6",
        ),
        ("search/tensor", [0], "search.tensor[0]", "greater than or equal to 1"),
        ("search/memory_reserve", 1.5, "search.memory_reserve", "less than 1"),
    ],
)
def test_bad_input_names_place_and_remedy(path: str, value: Any, where: str, says: str) -> None:
    found = problems(with_change(path, value))
    matching = [message for place, message in found.items() if place.startswith(where)]
    assert matching, found
    assert any(says in message for message in matching), found


def test_fix_must_be_allowed() -> None:
    data = with_change("search", {"tensor": [1, 2], "fix": {"tensor": 4}})
    assert "not among the allowed 1, 2" in problems(data)["search.fix.tensor"]
    data["search"]["fix"]["tensor"] = 2
    assert load_instance(data).search.allowed("tensor") == (2,)


def test_distributed_optimizer_is_another_spelling() -> None:
    instance = load_instance(with_change("training/distributed_optimizer", True))
    assert instance.training.data_sharding == ("optimizer",)
    assert "distributed_optimizer" not in instance.model_dump()["training"]
    data = with_change("training/distributed_optimizer", True)
    data["training"]["data_sharding"] = "none"
    assert "give one of the two" in problems(data)["training.distributed_optimizer"]


def test_everything_wrong_is_reported_at_once() -> None:
    data = small()
    data["extra"] = 1
    data["model"]["layers"] = -1
    data["training"]["global_batch_size"] = "many"
    data["cluster"]["network"]["inter_node"]["bandwidth"]["values"][0][1] = -5
    data["cluster"]["network"]["inter_node"]["bandwidth"]["values"][2] = [1]
    data["search"] = {"layers_per_stage": [1], "tensro": 2}
    found = problems(data)
    assert set(found) == {
        "extra",
        "model.layers",
        "training.global_batch_size[0]",
        "cluster.network.inter_node.bandwidth.values[0][1]",
        "cluster.network.inter_node.bandwidth.values[2]",
        "search.tensro",
    }


def test_contradictions_are_seen_beside_other_problems() -> None:
    data = with_change("training/precision", "fp16")
    data["model"]["layers"] = -1
    assert set(problems(data)) == {"model.layers", "cluster.gpu_types.A100.peak_flops"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("{", "is not JSON"),
        ("name: x", "line 1 column 1"),
        ("[1, 2]", "dictionary"),
        ('{"schema_version": 1, "name": "a", "name": "b"}', "name: this key occurs more than once"),
        ('{"schema_version": NaN}', "schema_version: nan is not accepted"),
        ('{"known": {"best_s": 1e999}}', "known.best_s: inf is not accepted"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_files_that_are_not_an_instance(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "instance.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_instance(path)
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_instance(tmp_path / "absent.json")
    with pytest.raises(InputError, match="is a directory"):
        load_instance(tmp_path)


def test_frozen() -> None:
    instance = load_instance(small())
    with pytest.raises(ValueError, match="frozen"):
        instance.name = "other"  # type: ignore[misc]


def test_instances_from_outside_load_and_round_trip() -> None:
    files = sorted(shared_data("data/instances").glob("*.json"))
    assert files
    for path in files:
        instance = load_instance(path)
        assert load_instance(instance.model_dump(mode="json")) == instance
        assert isinstance(instance, Instance)


MOE = {"experts": 8, "top_k": 2, "ffn_hidden_size": 512}
MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


@pytest.mark.parametrize(
    ("path", "value", "where", "says"),
    [
        ("model/moe", {"experts": 8}, "model.moe.top_k", "is required"),
        ("model/moe", {**MOE, "top_k": 9}, "model.moe.top_k", "exceeds the 8 experts"),
        ("model/moe", {**MOE, "experts": 8.0}, "model.moe.experts", "valid integer"),
        ("model/moe", {**MOE, "expert": 8}, "model.moe.expert", 'did you mean "experts"'),
        (
            "model/moe",
            {**MOE, "shared_expert_gate": True},
            "model.moe.shared_expert_gate",
            "no shared expert",
        ),
        ("model/moe", {**MOE, "layers": [1, 0]}, "model.moe.layers", "expected one per layer"),
        ("model/moe", {**MOE, "layers": [2] * 48}, "model.moe.layers[0]", "less than or equal to 1"),
        ("model/moe", {**MOE, "layers": [1], "layer_frequency": 2}, "model.moe.layers", "leave out either"),
        ("model/moe", {**MOE, "first_dense_layers": 1000}, "model.moe", "no layer has experts"),
        ("model/mla", {"kv_lora_rank": 512}, "model.mla.v_head_dim", "is required"),
        ("model/mla", {**MLA, "q_lora_rank": 0}, "model.mla.q_lora_rank", "greater than or equal to 1"),
    ],
)
def test_experts_and_latent_attention_that_cannot_be(path: str, value: Any, where: str, says: str) -> None:
    assert says in problems(with_change(path, value))[where]


@pytest.mark.parametrize(
    ("fields", "with_experts"),
    [
        ({}, [0, 1, 2, 3]),
        ({"first_dense_layers": 1}, [1, 2, 3]),
        ({"layer_frequency": 2}, [0, 2]),
        ({"first_dense_layers": 1, "layer_frequency": 2}, [2]),
        ({"layers": [0, 1, 1, 0]}, [1, 2]),
    ],
)
def test_layers_with_experts(fields: dict[str, Any], with_experts: list[int]) -> None:
    model = load_instance(
        with_change("model", {**small()["model"], "layers": 4, "moe": {**MOE, **fields}})
    ).model
    assert model.moe is not None
    assert [layer for layer in range(4) if model.moe.has_experts(layer)] == with_experts
