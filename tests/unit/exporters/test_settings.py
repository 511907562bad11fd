"""Settings of frameworks: read back they say the plan; what a framework cannot run is refused."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from pipette_milp.errors import IllegalConfigurationError
from pipette_milp.exporters.launch import Export
from pipette_milp.exporters.megatron import megatron_arguments
from pipette_milp.exporters.registry import export
from pipette_milp.exporters.torchtitan import split_weights
from pipette_milp.importers import deepspeed, megatron, nemo, torchtitan
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.model_parts import LatentAttention, MixtureOfExperts
from pipette_milp.schema.plan import Configuration, Placement, Plan, split_stages
from tests.launch_cases import configuration, instance

EXPERTS: dict[str, Any] = {
    "moe": {
        "experts": 8,
        "top_k": 2,
        "ffn_hidden_size": 512,
        "shared_ffn_hidden_size": 256,
        "router_bias": True,
        "first_dense_layers": 2,
    },
    "mla": {
        "q_lora_rank": 96,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
    },
    "kv_heads": 16,
}


def exported(target: str, wanted: Configuration, problem: Instance | None = None) -> Export:
    problem = problem or instance(layers=sum(wanted.layers_per_stage), training={"flash_attention": True})
    plan = Plan(configuration=wanted, placement=Placement(gpu_of_rank=tuple(range(wanted.num_gpus))))
    return export(target, problem, plan)


# ---------------------------------------------------------------- NeMo
@pytest.mark.parametrize(
    "wanted",
    [
        configuration((12, 12)),
        configuration((12, 12), sequence_parallel=True, recompute="selective", data_sharding="optimizer"),
        configuration((7, 8, 8, 7), data=1, recompute="full"),
        configuration((8, 7, 7, 8), data=1),
        configuration((3, 3, 3, 3), virtual_stages=2),
        configuration((24,), data=4),
    ],
    ids=lambda one: "-".join(map(str, one.layers_per_stage)),
)
def test_nemo_settings_come_back_as_the_same_configuration(wanted: Configuration) -> None:
    written = exported("nemo", wanted)
    run = nemo.parse(written.files["nemo.yaml"], "nemo.yaml")
    assert run.configuration == wanted
    assert run.training["flash_attention"] is True
    assert written.files["node_order.txt"].split() == [f"node{i}" for i in range(2)]


def test_nemo_needs_nodes_alike() -> None:
    plan = Plan(
        configuration=configuration((24,), data=3),
        placement=Placement(gpu_of_rank=(0, 1, 2, 3, 4, 5)),
    )
    with pytest.raises(IllegalConfigurationError, match=r"trainer\.devices"):
        export("nemo", instance(), plan)


# ---------------------------------------------------------------- torchtitan
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tensor": 2, "sequence_parallel": True, "recompute": "selective"},
        {"data_sharding": "parameters", "recompute": "full"},
        {"schedule": "gpipe"},
    ],
)
def test_torchtitan_settings_come_back(changes: dict[str, Any]) -> None:
    wanted = configuration((12, 12), **{"tensor": 1, **changes})
    read = torchtitan.parse(
        exported("torchtitan", wanted).files["torchtitan.toml"], "t.toml", wanted.num_gpus
    )
    assert (read.tensor, read.pipeline, read.data) == (wanted.tensor, 2, wanted.data)
    assert (read.micro_batch, read.num_micro_batches) == (1, 8)
    assert read.schedule == wanted.schedule
    assert read.training["data_sharding"] == wanted.data_sharding
    assert read.training["recompute"] == wanted.recompute
    assert read.training["global_batch_size"] == wanted.global_batch_size


def test_torchtitan_without_a_pipeline_keeps_micro_batches() -> None:
    wanted = configuration((24,), tensor=1, data=4, micro_batch=2, num_micro_batches=3)
    read = torchtitan.parse(exported("torchtitan", wanted).files["torchtitan.toml"], "t.toml", 4)
    assert (read.micro_batch, read.num_micro_batches, read.schedule) == (2, 3, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor": 2}, "divides the sequence"),
        ({"tensor": 8, "data": 1, "sequence_parallel": True}, "key-value heads"),
        ({"tensor": 1, "data_sharding": "optimizer"}, "all or nothing"),
        ({"tensor": 1, "stages": split_stages((1, 23))}, "cannot divide the layers"),
    ],
)
def test_torchtitan_refuses_what_it_cannot_run(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(IllegalConfigurationError, match=message):
        exported("torchtitan", configuration((12, 12), **changes))


@pytest.mark.parametrize(
    ("layers", "weights"),
    [
        ((8, 8, 7, 7), (0, 0)),
        ((7, 8, 8, 7), (1, 0)),
        ((7, 8, 8, 8), (1, 0)),
        ((7, 8, 8, 6), (1, 1)),
        ((6, 8, 8, 8), (2, 0)),
        ((7, 8, 7, 8), None),
    ],
)
def test_weights_of_embedding_and_head(layers: tuple[int, ...], weights: tuple[int, int] | None) -> None:
    assert split_weights(configuration(layers, data=1)) == weights


# ---------------------------------------------------------------- DeepSpeed
@pytest.mark.parametrize(("sharding", "stage"), [("none", 0), ("optimizer", 1)])
def test_deepspeed_settings_come_back(sharding: str, stage: int) -> None:
    wanted = configuration((12, 12), data_sharding=sharding)
    text = exported("deepspeed", wanted).files["ds_config.json"]
    assert json.loads(text)["zero_optimization"]["stage"] == stage
    read = deepspeed.parse(text, "ds_config.json")
    assert (read.tensor, read.data, read.micro_batch) == (2, 2, 1)
    assert read.num_micro_batches == 8
    assert read.training["data_sharding"] == sharding
    assert read.training["precision"] == "bf16"


def test_deepspeed_as_the_framework_needs_no_megatron() -> None:
    problem = instance(training={"framework": "deepspeed"})
    written = exported("deepspeed", configuration((12, 12)), problem)
    assert "megatron_args.sh" not in written.files
    assert written.files["hostfile"] == "node0 slots=4\nnode1 slots=4\n"
    assert "--include" not in written.files["launch_deepspeed.sh"]


def test_deepspeed_selects_gpus_of_a_node_that_is_used_in_part() -> None:
    plan = Plan(configuration=configuration((24,), tensor=1, data=2), placement=Placement(gpu_of_rank=(1, 3)))
    files = export("deepspeed", instance(nodes=1), plan).files
    assert '--include="node0:1,3"' in files["launch_deepspeed.sh"]
    backwards = plan.model_copy(update={"placement": Placement(gpu_of_rank=(3, 1))})
    with pytest.raises(IllegalConfigurationError, match="ascending order"):
        export("deepspeed", instance(nodes=1), backwards)


# ---------------------------------------------------------------- Kubernetes, MPICH
def test_a_pod_finds_its_number_by_the_node_it_is_on(tmp_path: Any) -> None:
    files = exported("kubernetes", configuration((12, 12))).files
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "torchrun"
    stub.write_text('#!/bin/bash\necho "torchrun $*"\n')
    stub.chmod(0o755)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "launch_kubernetes.sh"],
            cwd=tmp_path,
            env={"PATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    found = run(NODE_NAME="node1", MASTER_ADDR="10.0.0.7")
    assert found.returncode == 0, found.stderr
    assert "--node-rank=1" in found.stdout
    assert "--master-addr=10.0.0.7" in found.stdout
    assert "--master-addr=node0" in run(NODE_NAME="node0").stdout
    assert "pod_template.yaml" in run().stderr
    assert "not part of the plan" in run(NODE_NAME="other").stderr
    assert "fieldPath: spec.nodeName" in files["pod_template.yaml"]


def test_the_pod_template_is_yaml_with_the_nodes_of_the_plan() -> None:
    yaml = pytest.importorskip("yaml")
    template = yaml.safe_load(exported("kubernetes", configuration((12, 12))).files["pod_template.yaml"])
    terms = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = terms["nodeSelectorTerms"][0]["matchExpressions"]
    assert expression["values"] == ["node0", "node1"]
    assert set(template["metadata"]["labels"]) == {"pipette-plan"}


def test_mpich_repeats_a_host_where_ranks_alternate() -> None:
    plan = Plan(
        configuration=configuration((12, 12)), placement=Placement(gpu_of_rank=(0, 4, 1, 5, 2, 6, 3, 7))
    )
    files = export("mpich", instance(nodes=2), plan).files
    assert files["machinefile.txt"] == "node0:1\nnode1:1\n" * 4
    assert "local_of_rank=(0 0 1 1 2 2 3 3)" in files["run_rank.sh"]
    assert "mpiexec -n 8 -f" in files["launch_mpiexec.sh"]


# ---------------------------------------------------------------- experts in Megatron-LM's arguments
def test_experts_and_latent_attention_come_back() -> None:
    problem = instance(model=EXPERTS)
    wanted = configuration((12, 12), expert=2, sequence_parallel=True)
    script = megatron_arguments(problem, wanted).script(
        Plan(configuration=wanted, placement=Placement(gpu_of_rank=tuple(range(8)))), ""
    )
    run = megatron.parse(script, "args.sh")
    assert run.configuration == wanted
    assert MixtureOfExperts.model_validate(run.model["moe"]) == problem.model.moe
    assert LatentAttention.model_validate(run.model["mla"]) == problem.model.mla


def test_layers_with_experts_in_any_order_come_back() -> None:
    pattern = [0, 1, 1, 0, 1, 0]
    moe = {"experts": 4, "top_k": 1, "ffn_hidden_size": 64, "layers": pattern}
    problem = instance(layers=6, model={"moe": moe})
    words = " ".join(megatron_arguments(problem, configuration((3, 3))).words)
    assert "--moe-layer-freq ([0]*1+[1]*2+[0]*1+[1]*1+[0]*1)" in words
