from __future__ import annotations

import json
from typing import Any

import pytest

from pipette_milp.errors import IllegalConfigurationError, InputError
from pipette_milp.partial_configuration import complete_configuration
from pipette_milp.schema.instance import Instance, load_instance
from pipette_milp.schema.plan import Configuration
from tests.conftest import INSTANCES


def instance(**training: Any) -> Instance:
    """16 nodes of 8 GPUs, global batch 512, 64 layers."""
    data = json.loads((INSTANCES / "gpt-8.1b-16x8-a100-nominal.json").read_text())
    data["training"].update(training)
    return load_instance(data)


def test_derives_data_micro_batches_and_stages() -> None:
    configuration = complete_configuration({"pipeline": 8, "tensor": 4, "micro_batch": 2}, instance())
    assert (configuration.data, configuration.num_micro_batches) == (4, 64)
    assert configuration.layers_per_stage == (8,) * 8
    assert configuration.stages[0].embedding
    assert configuration.stages[-1].head
    assert configuration.pipeline_transfers == "exchange"
    assert configuration.gradient_dtype == "fp32"


def test_uneven_layers_add_up() -> None:
    configuration = complete_configuration(
        {"pipeline": 16, "tensor": 1, "micro_batch": 1, "data": 4}, instance()
    )
    assert sum(configuration.layers_per_stage) == 64
    assert configuration.num_micro_batches == 128


def test_micro_batch_from_the_number_of_micro_batches() -> None:
    configuration = complete_configuration({"pipeline": 8, "tensor": 4, "num_micro_batches": 32}, instance())
    assert configuration.micro_batch == 4


def test_options_with_one_allowed_value_take_it() -> None:
    given = {"pipeline": 8, "tensor": 4, "micro_batch": 1}
    free = complete_configuration(given, instance())
    assert (free.recompute, free.data_sharding, free.sequence_parallel) == ("none", "none", False)
    bound = complete_configuration(
        given, instance(recompute="full", data_sharding="optimizer", sequence_parallel=True)
    )
    assert (bound.recompute, bound.data_sharding, bound.sequence_parallel) == ("full", "optimizer", True)


def test_a_whole_configuration_stays_as_it_is() -> None:
    whole = complete_configuration({"pipeline": 4, "tensor": 8, "micro_batch": 1}, instance())
    assert complete_configuration(whole.model_dump(mode="json"), instance()) == whole
    assert isinstance(whole, Configuration)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pipeline": 8, "tensor": 4}, "micro_batch: is required"),
        ({"pipeline": 3, "tensor": 4, "micro_batch": 1}, "3 x 4 does not divide the 128 usable GPUs"),
        ({"pipeline": 8, "tensor": 4, "micro_batch": 3}, "= 12 does not divide the global batch 512"),
        ({"pipeline": 8, "tensor": 4, "num_micro_batches": 7}, "= 28 does not divide the global batch 512"),
        ({"pipeline": 8, "tensor": 4, "micro_batch": 1, "num_micro_batches": 64}, "the global batch is 512"),
        ([1], "expected a JSON object"),
    ],
)
def test_what_does_not_go_together(given: Any, says: str) -> None:
    with pytest.raises(IllegalConfigurationError) as caught:
        complete_configuration(given, instance(), source="c.json")
    assert says in str(caught.value)
    assert str(caught.value).startswith("c.json")


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"pipeline": 0, "micro_batch": 1}, "pipeline"),
        ({"pipeline": "8", "micro_batch": 1, "tensor": 4, "dtaa": 2}, "dtaa"),
        ({"pipeline": 8, "tensor": 4, "micro_batch": 1, "recompute": "some"}, "recompute"),
    ],
)
def test_wrong_fields_are_named(given: Any, place: str) -> None:
    with pytest.raises(InputError) as caught:
        complete_configuration(given, instance())
    assert place in {problem.path for problem in caught.value.problems}


def test_several_global_batches_need_both_numbers() -> None:
    several = instance(global_batch_size=[256, 512])
    given: dict[str, Any] = {"pipeline": 8, "tensor": 4, "micro_batch": 1}
    with pytest.raises(IllegalConfigurationError, match="several global batches"):
        complete_configuration(given, several)
    assert complete_configuration({**given, "num_micro_batches": 64}, several).global_batch_size == 256
