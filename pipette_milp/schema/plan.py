"""What a plan is: a configuration (degrees, schedule, layer split, options) and a placement.

Field names are those of the files (contract: "Result JSON"), units are in the names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field, field_validator, model_validator

if TYPE_CHECKING:
    import pandas as pd

Recompute = Literal["none", "selective", "full"]
DataSharding = Literal["none", "optimizer", "gradients", "parameters"]
PipelineTransfers = Literal["exchange", "async"]
GradientDtype = Literal["fp32", "fp16", "bf16"]

RANK_ORDER = ("tensor", "context", "data", "pipeline")


class FrozenModel(BaseModel):
    """Base of everything read from or written to files: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Stage(FrozenModel):
    """One virtual stage. Zero layers are legal."""

    embedding: bool = False
    layers: int = Field(ge=0)
    head: bool = False


class Overlap(FrozenModel):
    """Which communication the framework hides under compute.

    ``tensor`` is the fraction of exposed tensor collectives hidden by chunked overlap.
    """

    gradient_reduce: bool = False
    parameter_gather: bool = False
    tensor: float = Field(default=0.0, ge=0.0, le=1.0)


def _declare_layers_per_stage(schema: dict[str, Any]) -> None:
    """Files carry this derived field, so their JSON Schema names it."""
    schema["properties"]["layers_per_stage"] = {"type": "array", "items": {"type": "integer", "minimum": 0}}


class Configuration(FrozenModel):
    """Everything that is decided except which GPU does what.

    ``stages`` has one entry per virtual stage in model order; virtual stage ``j`` runs on pipeline
    stage ``j % pipeline``. ``num_micro_batches`` is per replica.
    """

    model_config = ConfigDict(json_schema_extra=_declare_layers_per_stage)

    pipeline: int = Field(ge=1)
    virtual_stages: int = Field(default=1, ge=1)
    tensor: int = Field(ge=1)
    context: int = Field(default=1, ge=1)
    data: int = Field(ge=1)
    expert: int = Field(default=1, ge=1)
    """Ranks of a stage that share the experts of a layer: so many of ``context x data`` in a row. No axis of
    its own."""
    rank_order: tuple[str, ...] = RANK_ORDER
    micro_batch: int = Field(ge=1)
    num_micro_batches: int = Field(ge=1)
    schedule: str = "1f1b"
    pipeline_transfers: PipelineTransfers = "exchange"
    stages: tuple[Stage, ...]
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    data_sharding: DataSharding = "none"
    gradient_dtype: GradientDtype = "fp32"
    overlap: Overlap = Overlap()

    @model_validator(mode="before")
    @classmethod
    def _read_layers_per_stage(cls, data: Any) -> Any:
        """Files also carry the derived ``layers_per_stage``; it may stand for ``stages``."""
        if not isinstance(data, dict) or "layers_per_stage" not in data:
            return data
        rest = dict(data)
        layers = rest.pop("layers_per_stage")
        if layers is None:
            return rest
        if not isinstance(layers, list | tuple) or not all(
            type(count) is int and count >= 0 for count in layers
        ):
            raise ValueError(f"layers_per_stage: expected a list of whole numbers, got {layers!r}")
        stages = rest.get("stages")
        if stages is None:
            rest["stages"] = split_stages(tuple(layers))
        elif isinstance(stages, list | tuple) and len(stages) == len(layers):
            counts = [s.get("layers") if isinstance(s, dict) else getattr(s, "layers", None) for s in stages]
            if counts != list(layers):
                raise ValueError(f"layers_per_stage {layers!r} contradicts stages, which have {counts!r}")
        else:
            raise ValueError("layers_per_stage contradicts stages: another number of stages")
        return rest

    @field_validator("rank_order")
    @classmethod
    def _known_order(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value != RANK_ORDER:
            raise ValueError(f"not supported yet: only {', '.join(RANK_ORDER)}, leftmost fastest")
        return value

    @computed_field  # type: ignore[prop-decorator]
    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Layers of each virtual stage, in model order."""
        return tuple(stage.layers for stage in self.stages)

    @property
    def num_virtual_stages(self) -> int:
        """``pipeline * virtual_stages``."""
        return self.pipeline * self.virtual_stages

    @property
    def global_batch_size(self) -> int:
        """Sequences per iteration."""
        return self.num_micro_batches * self.micro_batch * self.data

    @property
    def cell_size(self) -> int:
        """GPUs of a cell: what talks inside a layer."""
        return self.tensor * self.context

    @property
    def num_gpus(self) -> int:
        """GPUs the plan uses."""
        return self.pipeline * self.tensor * self.context * self.data

    def with_layers(self, layers: tuple[int, ...]) -> Configuration:
        """The same configuration with another layer split (one entry per virtual stage)."""
        if tuple(layers) == self.layers_per_stage:
            return self
        return self.model_copy(update={"stages": split_stages(layers)})


def split_stages(layers: tuple[int, ...]) -> tuple[Stage, ...]:
    """Stages of a layer split: embedding on the first virtual stage, head on the last."""
    last = len(layers) - 1
    return tuple(
        Stage(embedding=index == 0, layers=int(count), head=index == last)
        for index, count in enumerate(layers)
    )


class Placement(FrozenModel):
    """``gpu_of_rank[r]`` is the global GPU id that runs rank ``r``.

    Rank ``r = tensor_index + tensor * (context_index + context * (data_index + data * stage))``. A global GPU
    id is the first id of its node plus the local index, counted over all declared GPUs, excluded ones too.
    """

    gpu_of_rank: tuple[int, ...]


class Plan(FrozenModel):
    """A configuration and where it runs."""

    configuration: Configuration
    placement: Placement

    def to_pandas(self) -> pd.DataFrame:
        """A row for each rank: stage, replica, index inside the group, global GPU id."""
        from pipette_milp.schema.frames import plan_frame

        return plan_frame(self)

    def _repr_html_(self) -> str:
        from pipette_milp.schema.display import plan_html

        return plan_html(self)
