"""Exported Megatron arguments import to the same configuration."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipette_milp.exporters.megatron import megatron_arguments
from pipette_milp.exporters.megatron_split import split_arguments
from pipette_milp.importers import megatron
from pipette_milp.importers.megatron_split import micro_batch_problem
from pipette_milp.schema.plan import Configuration, Overlap, Placement, Plan
from tests.launch_cases import configuration, instance


@st.composite
def configurations(draw: st.DrawFn) -> tuple[Configuration, str]:
    """A configuration that Megatron-LM can run, and the precision it is for."""
    pipeline = draw(st.integers(1, 6))
    chunks = draw(st.integers(1, 3)) if pipeline > 1 else 1
    even = draw(st.booleans())
    if even:
        layers = (draw(st.integers(1, 5)),) * (pipeline * chunks)
    else:
        layers = tuple(
            draw(st.lists(st.integers(0, 6), min_size=pipeline * chunks, max_size=pipeline * chunks))
        )
        if sum(layers) == 0:
            layers = (*layers[:-1], 1)
    tensor = draw(st.sampled_from([1, 2, 4, 8]))
    count = draw(st.integers(1, 24))
    if chunks > 1 and micro_batch_problem(pipeline, count) is not None:
        count = pipeline * draw(st.integers(1, 4))
    precision = draw(st.sampled_from(["bf16", "fp16", "fp32"]))
    gradient = draw(
        st.sampled_from({"bf16": ["fp32", "bf16"], "fp16": ["fp16", "fp32"], "fp32": ["fp32"]}[precision])
    )
    sharding = draw(st.sampled_from(["none", "optimizer", "gradients", "parameters"]))
    parallel = tensor > 1 and draw(st.booleans())
    reduce = draw(st.booleans())
    found = configuration(
        layers,
        virtual_stages=chunks,
        tensor=tensor,
        data=draw(st.integers(1, 4)),
        micro_batch=draw(st.integers(1, 4)),
        num_micro_batches=count,
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        sequence_parallel=parallel,
        data_sharding=sharding,
        gradient_dtype=gradient,
        overlap=Overlap(
            gradient_reduce=reduce,
            parameter_gather=reduce and sharding != "none" and draw(st.booleans()),
            tensor=draw(st.sampled_from([0.0, 0.5])) if parallel else 0.0,
        ),
        **({"pipeline_transfers": "exchange"} if chunks > 1 and pipeline > 2 and draw(st.booleans()) else {}),
    )
    return found, precision


@settings(max_examples=200, deadline=None, derandomize=True)
@given(configurations())
def test_arguments_come_back_as_the_same_configuration(case: tuple[Configuration, str]) -> None:
    wanted, precision = case
    problem = instance(
        layers=sum(wanted.layers_per_stage),
        model={"attention_heads": 16, "kv_heads": 8},
        training={"precision": precision, "gradient_dtype": wanted.gradient_dtype},
    )
    placement = Placement(gpu_of_rank=tuple(range(wanted.num_gpus)))
    script = megatron_arguments(problem, wanted).script(Plan(configuration=wanted, placement=placement), "")
    run = megatron.parse(script, "args.sh", tensor_overlap=wanted.overlap.tensor or None)
    assert run.configuration == wanted
    assert run.others in ((), ("ckpt-format",))
    section = problem.model.model_dump()
    assert {name: section[name] for name in run.model} == dict(run.model)
    assert run.training["precision"] == precision


@settings(max_examples=300, deadline=None, derandomize=True)
@given(configurations())
def test_no_weaker_split_says_the_same(case: tuple[Configuration, str]) -> None:
    wanted, _ = case
    arguments = " ".join(split_arguments(wanted))
    layers, pipeline = wanted.layers_per_stage, wanted.pipeline
    if len(set(layers)) == 1:
        assert not [name for name in ("--decoder", "--account", "layout") if name in arguments]
    elif wanted.virtual_stages == 1 and len(set(layers[1:-1])) <= 1 and min(layers[0], layers[-1]) > 0:
        assert "--decoder" in arguments
        assert pipeline > 1
    assert ("--pipeline-model-parallel-layout" in arguments) <= (pipeline > 1)
