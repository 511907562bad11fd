"""JSON sources with a value replaced by something else: read or refused, never a traceback."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from pipette_milp.errors import InputError
from pipette_milp.importers import registry
from tests.importer_samples import KIND_OF_SAMPLE, sample

ODD: tuple[Any, ...] = (None, True, 0, -1, 1.5, "x", "", [], {}, [1], {"a": 1}, 10**30, [None], [[1]])
FURTHER_KEYS = (
    "layer_types",
    "mlp_layer_types",
    "text_config",
    "num_experts",
    "bias",
    "alibi",
    "n_layer",
    "head_dim",
)
MEGATRON = {"num_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "tensor_model_parallel_size": 2}
MEGATRON_KEYS = (*MEGATRON, "moe_layer_freq", "bf16", "pipeline_model_parallel_layout", "world_size")
# Deeper values repeat the same objects.
DEPTH = 4


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if len(path) < DEPTH and isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(min(len(value), 3))
        for key in keys:
            yield from places(value[key], (*path, key))


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = other
    return value


def cases() -> Iterator[tuple[str, Any]]:
    for name, kind in KIND_OF_SAMPLE.items():
        text = sample(name)
        if not text.startswith("{"):
            continue
        for path in places(json.loads(text)):
            for other in ODD:
                yield kind, replaced(json.loads(text), path, other)
        if kind == "hf-config":
            yield from ((kind, {**json.loads(text), key: other}) for key in FURTHER_KEYS for other in ODD)
    yield from (("megatron", {**MEGATRON, key: other}) for key in MEGATRON_KEYS for other in ODD)


def test_odd_values_are_read_or_refused() -> None:
    refused = total = 0
    for kind, value in cases():
        total += 1
        text = json.dumps(value)
        with contextlib.suppress(InputError):
            registry.guess_kind(text, "f")
        try:
            registry.parse(text, "f", kind)
        except InputError:
            refused += 1
    assert 0.3 * total < refused < total


@pytest.mark.parametrize("key", ["tie_word_embeddings", "bias", "attention_bias"])
def test_a_switch_in_quotes_is_not_taken_for_true(key: str) -> None:
    config = json.loads(sample("models/llama-3.1-8b.config.json"))
    with pytest.raises(InputError, match=f"{key}: expected true or false, got 'false'"):
        registry.parse(json.dumps({**config, key: "false"}), "f", "hf-config")


def test_null_means_the_default_of_the_class() -> None:
    config = {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 32,
        "vocab_size": 100,
    }
    text = json.dumps({**config, "tie_word_embeddings": None})
    assert registry.parse(text, "f", "hf-config").section["tied_embeddings"]
