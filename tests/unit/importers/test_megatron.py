from __future__ import annotations

from typing import Any

import pytest

from pipette_milp.errors import InputError
from pipette_milp.importers import megatron
from pipette_milp.importers.megatron_layout import format_layout, parse_layout
from pipette_milp.importers.megatron_model import padded_vocabulary
from pipette_milp.importers.megatron_run import MegatronRun
from pipette_milp.importers.megatron_split import SplitFlags, micro_batch_problem, split_of
from tests.importer_samples import sample

SHAPE = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --vocab-size 50257"
BATCH = "--micro-batch-size 1 --global-batch-size 64"


def parse(text: str, **options: Any) -> MegatronRun:
    return megatron.parse(text, "run.sh", **options)


def layers(**flags: Any) -> tuple[int, ...]:
    return split_of(SplitFlags(**flags), "f").layers_per_stage


def test_a_launch_script_as_people_write_it() -> None:
    run = parse(sample("megatron/llama_8b.sh"))
    assert dict(run.model) == {
        "layers": 32,
        "hidden_size": 4096,
        "ffn_hidden_size": 14336,
        "attention_heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "sequence_length": 8192,
        "gated_mlp": True,
        "tied_embeddings": False,
        "position_embedding": "rope",
        "normalization": "rmsnorm",
        "biases": False,
    }
    configuration = run.configuration
    assert configuration is not None
    assert (configuration.tensor, configuration.pipeline, configuration.data) == (4, 4, 2)
    assert configuration.layers_per_stage == (9, 8, 8, 7)
    assert (configuration.micro_batch, configuration.num_micro_batches) == (1, 128)
    assert configuration.recompute == "selective"
    assert configuration.data_sharding == "optimizer"
    assert configuration.overlap.gradient_reduce
    assert configuration.overlap.parameter_gather
    assert configuration.sequence_parallel
    assert run.padded_vocab_size == 128512  # next multiple of 128 * 4
    assert run.warnings == ()
    assert {"lr", "train-iters"} <= set(run.others)


def test_defaults_are_those_of_megatron() -> None:
    run = parse(f"{SHAPE} {BATCH} --world-size 8")
    assert run.model["ffn_hidden_size"] == 4 * 4096
    assert run.model["kv_heads"] == 32
    assert run.model["tied_embeddings"]
    assert run.model["biases"]
    assert run.model["position_embedding"] == "learned"
    assert run.model["normalization"] == "layernorm"
    assert run.training["precision"] == "fp32"
    assert run.configuration is not None
    assert run.configuration.data == 8
    gated = parse(f"{SHAPE} --swiglu")
    assert gated.model["ffn_hidden_size"] == int(4 * 4096 * 2 / 3 / 64) * 64


def test_what_is_missing_is_said_and_the_rest_kept() -> None:
    run = parse(f"{SHAPE} --tensor-model-parallel-size 2")
    assert run.configuration is None
    assert run.tensor == 2
    assert any("--world-size" in problem.message for problem in run.missing)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--bf16", ("bf16", "fp32")),
        ("--bf16 --grad-reduce-in-bf16", ("bf16", "bf16")),
        ("--fp16", ("fp16", "fp16")),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", ("fp16", "fp32")),
        ("", ("fp32", "fp32")),
    ],
)
def test_precision_and_gradients(flags: str, expected: tuple[str, str]) -> None:
    training = parse(f"{SHAPE} {flags}").training
    assert (training["precision"], training["gradient_dtype"]) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--recompute-activations", "selective"),
        ("--recompute-granularity selective", "selective"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "full"),
    ],
)
def test_recompute(flags: str, expected: str) -> None:
    assert parse(f"{SHAPE} {flags}").training["recompute"] == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--tensor-model-parallel-size 3", "32 heads do not divide"),
        ("--pipeline-model-parallel-size 5", "do not divide evenly by 5"),
        ("--tensor-model-parallel-size 2 --world-size 7", "7 GPUs do not divide"),
        (f"{BATCH} --world-size 48", "global batch 64 does not divide"),
        ("--bf16 --fp16", "exclude each other"),
        ("--checkpoint-activations", "is dead"),
        ("--recompute-granularity full", "needs --recompute-method"),
        ("--overlap-param-gather", "needs --use-distributed-optimizer"),
        ("--num-query-groups 5 --group-query-attention", "do not divide by 5 query groups"),
        ("--hidden-size 4100", "does not divide by 32 heads"),
        ("--num-layers x", r"run\.sh:1:\d+: --num-layers: expected a whole number"),
        ("--num-layers", "has no value"),
        ("--num-layers $UNSET", "--set UNSET=VALUE"),
        ("--normalization BatchNorm", "expected LayerNorm or RMSNorm"),
        ("--max-position-embeddings 1024", "fewer than the sequence"),
        (
            "--use-tp-pp-dp-mapping --expert-model-parallel-size 8 --pipeline-model-parallel-size 8",
            "order the nodes",
        ),
        ("--hybrid-layer-pattern M*M", "not supported yet"),
        ("--gtp-remat-size 2", "not supported yet"),
    ],
)
def test_what_megatron_refuses_is_refused(flags: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(f"{SHAPE} {flags}")


def test_all_problems_at_once() -> None:
    with pytest.raises(InputError) as raised:
        parse(f"{SHAPE} --tensor-model-parallel-size 3 --pipeline-model-parallel-size 5 --bf16 --fp16")
    assert len(raised.value.problems) == 3


def test_the_last_of_two_wins_and_is_warned_about() -> None:
    run = parse(f"{SHAPE} --tensor-model-parallel-size 2 --tensor-model-parallel-size 4")
    assert run.tensor == 4
    assert any("given twice" in problem.message for problem in run.warnings)


def test_other_spellings() -> None:
    run = parse(
        "--num_layers=32 --hidden_size=4096 --num_attention_heads=32 --decoder_last_pipeline_num_layers=7 "
        "--num-layers-in-first-pipeline-stage 9 --pipeline_model_parallel_size=4"
    )
    assert run.split is not None
    assert run.split.layers_per_stage == (9, 8, 8, 7)


def test_a_command_inside_quotes() -> None:
    run = parse(f'srun bash -c "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py {SHAPE} {BATCH}"\n')
    assert run.data == 16


def test_unknown_further_arguments_are_said() -> None:
    run = parse(f"run {SHAPE} --tensor-model-parallel-size 2 $MORE --bf16 $EXTRA\n")
    assert run.tensor == 2
    assert {"$MORE", "$EXTRA"} <= {word for problem in run.warnings for word in problem.message.split()}


def test_two_different_runs_are_refused() -> None:
    with pytest.raises(InputError, match="several commands"):
        parse(f"a {SHAPE}\nb {SHAPE} --bf16\n")


def test_arguments_in_a_branch_are_named() -> None:
    with pytest.raises(InputError, match="--set TP=VALUE"):
        parse(f"if [ $A ]; then TP=1; else TP=2; fi\nrun {SHAPE} --tensor-model-parallel-size $TP\n")
    run = parse(
        f"if [ $A ]; then TP=1; else TP=2; fi\nrun {SHAPE} --tensor-model-parallel-size $TP\n",
        settings={"TP": "2"},
    )
    assert run.tensor == 2


def test_json_of_the_same_names() -> None:
    run = parse(
        '{"num_layers": 32, "bf16": true, "fp16": false, "tensor_model_parallel_size": 2, '
        '"virtual_pipeline_model_parallel_size": null}'
    )
    assert (run.model["layers"], run.tensor, run.training["precision"]) == (32, 2, "bf16")
    with pytest.raises(InputError, match="expected true or false"):
        parse('{"num_layers": 32, "bf16": 1}')


def test_mapping_flag_without_experts_is_a_placement() -> None:
    run = parse(
        f"{SHAPE} {BATCH} --world-size 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
        "--use-tp-pp-dp-mapping"
    )
    # rank tensor + 2*(replica + 2*stage) of the project runs on GPU tensor + 2*(stage + 2*replica)
    assert run.gpu_of_rank() == (0, 1, 4, 5, 2, 3, 6, 7)


def test_experts_and_latent_attention_are_kept_as_facts() -> None:
    run = parse(
        "--num-layers 5 --hidden-size 64 --num-attention-heads 4 --num-experts 8 --moe-ffn-hidden-size 32 "
        '--moe-layer-freq "([0]*2+[1]*3)" --multi-latent-attention --q-lora-rank 16 --mtp-num-layers 1'
    )
    assert run.model["moe"]["first_dense_layers"] == 2
    assert "layers" not in run.model["moe"]
    assert run.model["mla"]["q_lora_rank"] == 16
    assert run.model["mtp_layers"] == 1
    with pytest.raises(InputError, match="lists 4 layers"):
        parse('--num-layers 5 --num-experts 8 --moe-layer-freq "([0]*2+[1]*2)"')
    with pytest.raises(InputError, match="expected a number or a list"):
        parse('--num-layers 5 --num-experts 8 --moe-layer-freq "__import__(1)"')
    with pytest.raises(InputError, match="at most 10000"):
        parse("--num-layers 99999 --num-experts 8 --moe-layer-freq 2")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"layers": 32, "pipeline": 4}, (8, 8, 8, 8)),
        ({"layers": 30, "pipeline": 4, "first": 8, "last": 8}, (8, 7, 7, 8)),
        (
            {"layers": 30, "pipeline": 4, "account_for_embedding": True, "account_for_loss": True},
            (7, 8, 8, 7),
        ),
        ({"layers": 31, "pipeline": 4, "account_for_embedding": True}, (7, 8, 8, 8)),
        ({"layers": 30, "pipeline": 4, "layout": "Et*8|t*8|t*7|t*7L"}, (8, 8, 7, 7)),
        ({"layers": 8, "pipeline": 2, "layers_per_chunk": 2}, (2, 2, 2, 2)),
        ({"layers": 8, "pipeline": 2, "chunks": 4}, (1,) * 8),
        (
            {
                "layers": 6,
                "pipeline": 2,
                "chunks": 2,
                "account_for_embedding": True,
                "account_for_loss": True,
            },
            (1, 2, 2, 1),
        ),
        ({"layers": 10, "pipeline": 2, "first": 4, "chunks": 2}, (2, 3, 2, 3)),
    ],
)
def test_splits(flags: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert layers(**flags) == expected
    assert sum(expected) == flags["layers"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"layers": 30, "pipeline": 4}, "dropped the rest silently"),
        ({"layers": 80, "pipeline": 16, "layers_per_chunk": 2}, "possible are 1, 5"),
        ({"layers": 40, "pipeline": 8, "layers_per_chunk": 2}, "possible are 1, 5"),
        ({"layers": 20, "pipeline": 1, "last": 1}, "there is one stage"),
        ({"layers": 20, "pipeline": 2, "last": 1, "account_for_loss": True}, "exclude"),
        ({"layers": 20, "pipeline": 2, "layout": "E|L", "first": 1}, "excludes"),
        ({"layers": 20, "pipeline": 2, "layout": "E|L", "chunks": 2}, "sets the number of chunks"),
        ({"layers": 20, "pipeline": 2, "chunks": 2, "layers_per_chunk": 5}, "not both"),
        ({"layers": 20, "pipeline": 4, "first": 3}, "cannot share evenly"),
        ({"layers": 20, "pipeline": 2, "layout": "Et*9|t*10L"}, "19 decoder layers"),
        ({"layers": 20, "pipeline": 2, "layout": "Et*20L"}, "no multiple"),
    ],
)
def test_splits_that_lose_layers_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        layers(**flags)


def test_layout_of_a_deep_pipeline() -> None:
    stages = parse_layout("Et*3|(tt|)*29,m|L", 16, "f")
    assert len(stages) == 32
    assert sum(stage.layers for stage in stages) == 61
    assert format_layout(stages) == "Et*3|(tt|)*29m|L"


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("t|L", "expected one E first"),
        ("Et|tE|L|", "expected one E first"),
        ("E|mt|tL|t", "expected one E first"),
        ("Ex|L", "cannot read 'x'"),
        ("Et|tm|mt|L", "expected one E first"),
        ("Et|t|m|L", "first pipeline rank"),
        ("(t*999999)*999999|L", "more often than any model"),
    ],
)
def test_layouts_that_megatron_refuses(layout: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_layout(layout, 2, "f")


@pytest.mark.parametrize(
    ("pipeline", "count", "group", "fine"),
    [
        (6, 3, None, False),
        (6, 6, None, True),
        (4, 10, None, False),
        (4, 12, None, True),
        (4, 9, 5, True),
        (4, 8, 3, False),
    ],
)
def test_micro_batches_of_an_interleaved_schedule(
    pipeline: int, count: int, group: int | None, fine: bool
) -> None:
    assert (micro_batch_problem(pipeline, count, group) is None) == fine


def test_padded_vocabulary() -> None:
    assert [padded_vocabulary(151669, tensor) for tensor in (1, 4, 8)] == [151680, 152064, 152576]
