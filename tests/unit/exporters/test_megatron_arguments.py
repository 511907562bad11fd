from __future__ import annotations

from typing import Any

import pytest

from pipette_milp.errors import IllegalConfigurationError
from pipette_milp.exporters.megatron import (
    RING_ALGORITHMS,
    megatron_arguments,
    plan_hash,
    rank_order_argument,
)
from pipette_milp.exporters.megatron_split import split_arguments
from pipette_milp.schema.plan import Overlap, Stage
from tests.launch_cases import configuration, instance, plan


def words(layers: tuple[int, ...] = (12, 12), **given: Any) -> str:
    wanted = configuration(layers, **given)
    return " ".join(megatron_arguments(instance(layers=sum(layers)), wanted).words)


@pytest.mark.parametrize(
    ("layers", "given", "expected"),
    [
        ((8, 8, 8, 8), {}, ()),
        ((24,), {}, ()),
        ((9, 8, 8, 7), {}, ("--decoder-first-pipeline-num-layers 9", "--decoder-last-pipeline-num-layers 7")),
        ((8, 8, 8, 7), {}, ("--decoder-last-pipeline-num-layers 7",)),
        ((9, 8, 8, 8), {}, ("--decoder-first-pipeline-num-layers 9",)),
        (
            (0, 1, 1, 0),
            {},
            ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"),
        ),
        ((8, 8, 7, 7), {}, ("--pipeline-model-parallel-layout Et*8|t*8|t*7|t*7L",)),
        ((0, 3, 3), {}, ("--pipeline-model-parallel-layout E|t*3|t*3L",)),
        ((2, 2, 2, 2), {"virtual_stages": 2}, ("--num-virtual-stages-per-pipeline-rank 2",)),
        (
            (1, 2, 2, 1),
            {"virtual_stages": 2},
            (
                "--num-virtual-stages-per-pipeline-rank 2",
                "--account-for-embedding-in-pipeline-split",
                "--account-for-loss-in-pipeline-split",
            ),
        ),
        (
            (2, 3, 2, 3),
            {"virtual_stages": 2},
            ("--decoder-first-pipeline-num-layers 4", "--num-virtual-stages-per-pipeline-rank 2"),
        ),
        ((3, 2, 2, 3), {"virtual_stages": 2}, ("--pipeline-model-parallel-layout Et*3|(tt|)*2t*3L",)),
    ],
)
def test_the_weakest_split_that_says_it(
    layers: tuple[int, ...], given: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert split_arguments(configuration(layers, **given)) == expected


def test_split_needs_embedding_first_and_head_last() -> None:
    stages = (Stage(embedding=True, layers=12), Stage(layers=12), Stage(layers=0, head=True))
    assert split_arguments(configuration((12, 12, 0), stages=stages))
    odd = (Stage(layers=12), Stage(embedding=True, layers=12, head=True))
    with pytest.raises(IllegalConfigurationError, match=r"stages\[0\]"):
        split_arguments(configuration((12, 12), stages=odd))


def test_what_the_plan_assumed_is_written() -> None:
    text = words(
        sequence_parallel=True,
        data_sharding="optimizer",
        recompute="selective",
        overlap=Overlap(gradient_reduce=True, parameter_gather=True, tensor=0.4),
        gradient_dtype="bf16",
    )
    for argument in (
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        "--tp-comm-overlap",
        "--grad-reduce-in-bf16",
        "--recompute-granularity selective",
        "--group-query-attention --num-query-groups 4",
        "--kv-channels 64",
        "--bf16",
    ):
        assert argument in text


def test_the_environment_makes_the_assumptions_true() -> None:
    wanted = plan(list(range(8)))
    arguments = megatron_arguments(instance(), wanted.configuration)
    assert ("NCCL_ALGO", RING_ALGORITHMS) in [(name, value) for name, value, _ in arguments.environment]
    script = arguments.script(wanted, "instance launch")
    assert plan_hash(wanted) in script
    assert "NCCL may choose trees" in script
    one_replica = megatron_arguments(instance(), configuration(data=1))
    assert "NCCL_ALGO" not in [name for name, _, _ in one_replica.environment]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schedule": "gpipe"}, "not gpipe"),
        ({"schedule": "zb-h1", "pipeline_transfers": "async"}, "not zb-h1"),
        ({"pipeline_transfers": "async"}, "only exchange"),
        ({"tensor": 3}, "16 heads do not divide by 3"),
        ({"overlap": Overlap(parameter_gather=True)}, "distributed optimizer"),
        ({"overlap": Overlap(tensor=0.5)}, "only with sequence parallelism"),
        ({"schedule": "interleaved", "pipeline_transfers": "async"}, "exactly when there are several"),
    ],
)
def test_what_megatron_refuses_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(IllegalConfigurationError, match=message):
        words(**given)


def test_interleaving_needs_enough_micro_batches_and_stages() -> None:
    with pytest.raises(IllegalConfigurationError, match="micro-batch group"):
        words((2,) * 12, virtual_stages=2, num_micro_batches=3)
    with pytest.raises(IllegalConfigurationError, match="3 pipeline stages"):
        words((6,) * 4, virtual_stages=2, pipeline_transfers="exchange")
    assert "--no-overlap-p2p-communication" in words(
        (4,) * 6, virtual_stages=2, pipeline_transfers="exchange", num_micro_batches=6
    )


def test_layers_are_never_lost() -> None:
    with pytest.raises(IllegalConfigurationError, match="hold 20 layers, the model has 24"):
        megatron_arguments(instance(), configuration((10, 10)))


def test_one_stage_never_gets_first_or_last_counts() -> None:
    assert "decoder-" not in words((24,))


def test_the_mapping_flag_is_refused_with_experts() -> None:
    order = ("tensor", "context", "pipeline", "data")
    assert rank_order_argument(("tensor", "context", "data", "pipeline"), pipeline=8, expert=8) is None
    assert rank_order_argument(order, pipeline=8) == "--use-tp-pp-dp-mapping"
    assert rank_order_argument(order, pipeline=1, expert=8) == "--use-tp-pp-dp-mapping"
    with pytest.raises(IllegalConfigurationError, match="order the nodes"):
        rank_order_argument(order, pipeline=8, expert=8)
    with pytest.raises(IllegalConfigurationError, match="has no order"):
        rank_order_argument(("pipeline", "context", "data", "tensor"), pipeline=8)
