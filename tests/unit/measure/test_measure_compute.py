"""Layers timed on this machine's CPU: a profile of the shape that instances take."""

from __future__ import annotations

from typing import Any

import pytest

from pipette_milp.errors import InputError
from pipette_milp.schema.instance import Instance
from pipette_milp.transformer import Transformer
from tests.instance_cases import configuration, instance

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'pipette_milp[measure]'")

FIELDS = {
    "gpu_type",
    "layer_kind",
    "tensor",
    "context",
    "micro_batch",
    "sequence_length",
    "precision",
    "forward_s",
    "backward_s",
    "activation_bytes",
    "includes_tensor_comm",
    "source",
}
"""Of the contract."""

LLAMA = {
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "attention_heads": 4,
    "kv_heads": 2,
    "vocab_size": 500,
    "sequence_length": 32,
    "gated_mlp": True,
    "tied_embeddings": False,
    "position_embedding": "rope",
    "normalization": "rmsnorm",
    "biases": False,
}
GPT = {
    "hidden_size": 64,
    "ffn_hidden_size": 256,
    "attention_heads": 4,
    "sequence_length": 32,
    "vocab_size": 500,
}


def small(model: dict[str, Any], **training: Any) -> Instance:
    return instance(model=model, training={"precision": "fp32", **training})


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipette_milp.measure import compute

    monkeypatch.setattr(compute, "RUN_S", 0.0)
    torch.set_num_threads(1)  # threads that wait for each other spin on a busy machine


def test_entries_have_the_fields_of_the_contract() -> None:
    from pipette_milp.measure.compute import ComputeOptions, measure_compute

    said: list[str] = []
    section = measure_compute(
        small(LLAMA), ComputeOptions((1, 2), (1, 2), device="cpu"), progress=said.append
    )
    assert section["kind"] == "profile"
    assert len(section["entries"]) == len(said) == 2 * 2 * 4
    for entry in section["entries"]:
        assert set(entry) == FIELDS
        assert entry["forward_s"] > 0
        assert entry["gpu_type"] == "gpu"
        assert (entry["backward_s"] > 0) == (entry["layer_kind"] != "optimizer")


@pytest.mark.parametrize(
    ("model", "training"),
    [(LLAMA, {"flash_attention": True}), (LLAMA, {}), (GPT, {}), ({**LLAMA, "qk_norm": True}, {})],
)
def test_parts_have_the_parameters_of_the_model(model: dict[str, Any], training: dict[str, Any]) -> None:
    from pipette_milp.measure.layers import build_part

    job = small(model, **training)
    transformer = Transformer(job.model)
    for tensor in (1, 2):
        layer = build_part(torch, job, "dense", tensor)
        held = sum(parameter.numel() for parameter in layer.parameters())
        assert held == transformer.layer_parameters(tensor)
        head = build_part(torch, job, "head", tensor)
        held = sum(parameter.numel() for parameter in head.parameters())
        assert held == transformer.head_parameters(tensor, embedding_on_same_stage=False)
        embedding = build_part(torch, job, "embedding", tensor)
        held = sum(parameter.numel() for parameter in embedding.parameters())
        assert held == transformer.embedding_parameters(tensor)


def test_kept_bytes_are_near_the_analytic_ones_and_grow_with_the_micro_batch() -> None:
    from pipette_milp.measure.compute import ComputeOptions, measure_compute

    job = small(LLAMA, flash_attention=True)
    entries = measure_compute(job, ComputeOptions((1,), (1, 2), device="cpu", kinds=("dense",)))["entries"]
    one, two = (entry["activation_bytes"] for entry in entries)
    assert two == pytest.approx(2 * one, rel=0.05)
    analytic = 32 * Transformer(job.model).layer_activation_bytes(
        1, element_bytes=4, sequence_parallel=False, flash=True, recompute="none"
    )
    assert 0.7 * analytic < one < 2.0 * analytic


def test_a_gpu_that_is_not_there() -> None:
    from pipette_milp.measure.compute import ComputeOptions, measure_compute

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match="sees no GPU"):
        measure_compute(small(LLAMA), ComputeOptions(device="cuda"))


def test_what_is_measured_loads_and_is_used() -> None:
    from pipette_milp.cost.build import CostModel
    from pipette_milp.measure.compute import ComputeOptions, measure_compute

    job = small(LLAMA)
    section = measure_compute(job, ComputeOptions((1, 2), (1, 2), device="cpu"))
    profiled = CostModel.of(instance(model=LLAMA, training={"precision": "fp32"}, compute=section))
    dense = [entry for entry in section["entries"] if entry["layer_kind"] == "dense"]
    assert len(dense) == 4
    for entry in dense:
        plan = configuration(tensor=entry["tensor"], micro_batch=entry["micro_batch"])
        time = profiled.tasks(plan).layer_compute("dense")
        assert time.forward_s == pytest.approx(entry["forward_s"])
        assert time.backward_s == pytest.approx(entry["backward_s"])
        assert profiled.measured_layers[0].kept_bytes("dense", plan) == entry["activation_bytes"]
        assert profiled.warnings([plan]) == []
