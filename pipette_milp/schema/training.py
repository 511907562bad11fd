"""Section ``training`` of an instance: batch, precision and the options of the framework."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pipette_milp.schema.plan import (
    DataSharding,
    FrozenModel,
    GradientDtype,
    Overlap,
    PipelineTransfers,
    Recompute,
)
from pipette_milp.schema.quantities import ONE_OR_MANY, Count, Flag
from pipette_milp.schema.strict import Location, problems_error

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
Framework = Literal["megatron", "deepspeed"]

# Megatron overlaps transfers in the interleaved schedule only; zero-bubble schedules need it as well.
_TRANSFERS_OF_SCHEDULE: dict[str, PipelineTransfers] = {
    "gpipe": "exchange",
    "1f1b": "exchange",
    "interleaved": "async",
    "zb-h1": "async",
}


class TrainingSection(FrozenModel):
    """How the model is trained. Fields that may be a list in the file are tuples: choose from these."""

    global_batch_size: Annotated[tuple[Count, ...], *ONE_OR_MANY]
    """Sequences per iteration; times of several are compared per token."""
    precision: Precision
    gradient_dtype: GradientDtype = Field(default=None, validate_default=True)
    """Default: fp16 for fp16, else fp32."""
    optimizer: Literal["adam", "adamw"] = "adam"
    data_sharding: Annotated[tuple[DataSharding, ...], *ONE_OR_MANY] = ("none",)
    distributed_optimizer: Flag | None = Field(default=None, exclude=True)
    """Another spelling of ``data_sharding: optimizer``; read, never written."""
    sequence_parallel: Annotated[tuple[Flag, ...], *ONE_OR_MANY] = (False,)
    recompute: Annotated[tuple[Recompute, ...], *ONE_OR_MANY] = ("none",)
    flash_attention: Flag = False
    framework: Framework = "megatron"
    pipeline_transfers: Annotated[tuple[PipelineTransfers, ...], *ONE_OR_MANY] | None = None
    """None = what the framework does with the schedule, see `transfers_for`."""
    scatter_gather_hops: Flag = False
    """Megatron-LM up to v3 and DeepSpeed: each tensor rank sends its share, the receivers gather."""
    overlap: Overlap = Overlap()

    def transfers_for(self, schedule: str) -> tuple[PipelineTransfers, ...]:
        """Transfer modes to choose from with this schedule."""
        if self.pipeline_transfers is not None:
            return self.pipeline_transfers
        return (_TRANSFERS_OF_SCHEDULE.get(schedule, "async"),)

    @field_validator("gradient_dtype", mode="before")
    @classmethod
    def _default_gradient_dtype(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            return value
        return "fp16" if info.data.get("precision") == "fp16" else "fp32"

    @model_validator(mode="before")
    @classmethod
    def _distributed_optimizer(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        spelled = data.get("distributed_optimizer")
        if isinstance(spelled, bool):
            wanted = "optimizer" if spelled else "none"
            given = data.get("data_sharding", wanted)
            if given not in (wanted, [wanted], (wanted,)):
                raise problems_error(
                    [
                        (
                            ("distributed_optimizer",),
                            f"{str(spelled).lower()} means data_sharding {wanted!r}, "
                            f"but data_sharding is {given!r}: give one of the two",
                        )
                    ]
                )
            filled["data_sharding"] = wanted
            filled["distributed_optimizer"] = None
        return filled

    @model_validator(mode="after")
    def _consistent(self) -> TrainingSection:
        problems: list[tuple[Location, str]] = []
        if self.precision != "fp16" and self.gradient_dtype == "fp16":
            problems.append((("gradient_dtype",), f"fp16 gradients do not go with {self.precision}"))
        if self.precision in ("fp32", "tf32") and self.gradient_dtype != "fp32":
            problems.append((("gradient_dtype",), f"expected fp32 with precision {self.precision}"))
        if self.precision == "fp16" and self.gradient_dtype == "bf16":
            problems.append((("gradient_dtype",), "expected fp16 or fp32 with precision fp16"))
        if self.overlap.parameter_gather and not {"optimizer", "gradients"} & set(self.data_sharding):
            problems.append(
                (
                    ("overlap", "parameter_gather"),
                    'there is no parameter gather after the step without data_sharding "optimizer" or '
                    '"gradients"',
                )
            )
        if self.framework == "deepspeed" and any(self.sequence_parallel):
            problems.append((("sequence_parallel",), "DeepSpeed's pipeline engine has none"))
        if problems:
            raise problems_error(dict.fromkeys(problems))
        return self
