from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipette_milp import presets
from pipette_milp.errors import InputError
from pipette_milp.init import build_instance, read_hosts
from pipette_milp.schema.instance import load_instance
from pipette_milp.transformer import Transformer
from pipette_milp.units import Dimension, parse_quantity

PUBLISHED_PARAMETERS = {
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
}
"""Totals on the model cards."""


def build(**changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": "llama-3.1-8b",
        "cluster": "8x8:a100-80gb",
        "network": "8x200Gbit/s",
        "global_batch_size": 512,
        "sequence_length": 1024,
    }
    return build_instance(**{**arguments, **changes})


@pytest.mark.parametrize("model", list(presets.presets("model")))
def test_every_model_preset_makes_an_instance(model: str) -> None:
    instance = load_instance(build(model=model))
    if model in PUBLISHED_PARAMETERS:
        assert Transformer(instance.model).parameters == PUBLISHED_PARAMETERS[model]


@pytest.mark.parametrize("gpu", list(presets.presets("gpu")))
def test_every_gpu_preset_makes_an_instance(gpu: str) -> None:
    instance = load_instance(build(cluster=f"2x4:{gpu}"))
    cluster = instance.cluster
    links = presets.scale_up(presets.presets("gpu")[gpu]["scale_up"])
    assert cluster.scale_up_of(cluster.nodes[0]).per_gpu_bandwidth == parse_quantity(
        links["attained"], Dimension.BANDWIDTH
    )
    assert parse_quantity(links["attained"], Dimension.BANDWIDTH) < parse_quantity(
        links["nominal"], Dimension.BANDWIDTH
    )
    marketing = int("".join(c for c in gpu.split("-")[1] if c.isdigit())) * 1e9
    (gpu_type,) = cluster.gpu_types.values()
    assert 0.85 * marketing < gpu_type.memory < 1.1 * marketing


@pytest.mark.parametrize("kind", list(presets.KINDS))
def test_presets_name_their_source_and_no_name_means_two(kind: str) -> None:
    names: list[str] = []
    for canonical, preset in presets.presets(kind).items():
        assert len(preset["source"]) > 10
        names += {canonical, preset.get("name", canonical).lower(), *preset.get("aliases", ())}
    assert len(names) == len(set(names))


def test_nominal_links_are_scaled_and_both_figures_kept() -> None:
    instance = load_instance(build())
    inter_node = instance.cluster.network.inter_node
    assert inter_node is not None
    assert inter_node.source == "nominal"
    fraction = presets.network_rule()["attained_fraction"]
    assert inter_node.bandwidth == pytest.approx(8 * 25e9 * fraction)
    nics = instance.cluster.nics_of(instance.cluster.nodes[0])
    assert nics is not None
    assert (nics.count, nics.bandwidth) == (8, pytest.approx(25e9 * fraction))
    provenance = build()["provenance"]
    assert provenance["cluster.network.inter_node"]["nominal"] == "8 x 25 GB/s"
    assert provenance["cluster.network.inter_node"]["attained"] == "8 x 23 GB/s"


def test_precision_follows_the_gpu() -> None:
    assert build()["training"]["precision"] == "bf16"
    volta = build(cluster="8x8:v100-32gb")["training"]
    assert (volta["precision"], volta["flash_attention"]) == ("fp16", False)
    assert build(precision="fp32")["training"]["precision"] == "fp32"


def test_one_node_needs_no_network() -> None:
    assert load_instance(build(cluster="1x8:h200", network=None)).cluster.num_gpus == 8


def test_host_names_give_the_order(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# rack 1\nnode10 slots=8\nnode2 slots=8  # second\n\n")
    assert read_hosts(path) == ["node10", "node2"]
    instance = load_instance(build(cluster="2x8:a100-80gb", hosts=read_hosts(path)))
    assert [node.name for node in instance.cluster.nodes] == ["node10", "node2"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cluster": "8x8:a100"}, "choose from a100-40gb, a100-80gb, a100-80gb-pcie"),
        ({"cluster": "8x8:a1000"}, "unknown gpu 'a1000', choose from"),
        ({"cluster": "8x8"}, "such as 8x8:a100-80gb"),
        ({"cluster": "0x8:a100-80gb"}, "at least one node"),
        ({"model": "gpt"}, "gpt-3.2b"),
        ({"model": "llama-3.1"}, "choose from llama-3.1-8b, llama-3.1-70b, llama-3.1-405b"),
        ({"model": "absent.json"}, "no such file"),
        ({"network": "8x200gbit/s"}, "in doubt"),
        ({"network": "8x200"}, "no unit"),
        ({"network": "fast"}, "such as 8x200Gbit/s"),
        ({"network": None}, "is required: the cluster has 8 nodes"),
        ({"hosts": ["a", "b"]}, "names 2 hosts, --cluster has 8 nodes"),
        ({"global_batch_size": 0}, "training.global_batch_size"),
        ({"model": "gpt2-xl", "sequence_length": 4096}, "table of 1024 rows is shorter"),
        ({"cluster": "8x8:v100-32gb", "precision": "bf16"}, "no entry for precision 'bf16'"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        build(**changes)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nobody\n", "a\na\n"])
def test_host_files_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(InputError, match=r"names no host|occurs twice"):
        read_hosts(path)


def test_a_configuration_file_as_model(tmp_path: Path) -> None:
    path = tmp_path / "my-model" / "config.json"
    path.parent.mkdir()
    path.write_text(
        json.dumps(
            {
                "model_type": "gpt2",
                "n_embd": 64,
                "n_layer": 2,
                "n_head": 4,
                "vocab_size": 100,
                "n_positions": 2048,
            }
        )
    )
    data = build(model=str(path))
    assert data["name"] == "my-model-8x8-a100-80gb"
    assert data["model"]["sequence_length"] == 1024
    assert data["model"]["max_positions"] == 2048
