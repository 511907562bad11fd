"""How a run trains, from Megatron-LM arguments: precision, sharding, recompute and overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipette_milp.importers.megatron_flags import ArgumentReader
from pipette_milp.schema.plan import DataSharding, GradientDtype, Overlap, Recompute

_SHARDING: dict[str, DataSharding] = {
    "no_shard": "none",
    "optim": "optimizer",
    "optim_grads": "gradients",
    "optim_grads_params": "parameters",
}


@dataclass(frozen=True)
class TrainingOptions:
    """What the arguments say; the fields of a configuration and of an instance's ``training``."""

    precision: str
    gradient_dtype: GradientDtype
    data_sharding: DataSharding
    sequence_parallel: bool
    recompute: Recompute
    overlap: Overlap
    flash_attention: bool | None
    """None = the arguments do not say."""

    def section(self, global_batch_size: int | None) -> dict[str, Any]:
        """An instance's ``training``, without what is not known."""
        fields: dict[str, Any] = {
            "global_batch_size": global_batch_size,
            "precision": self.precision,
            "gradient_dtype": self.gradient_dtype,
            "optimizer": "adam",
            "data_sharding": self.data_sharding,
            "sequence_parallel": self.sequence_parallel,
            "recompute": self.recompute,
            "framework": "megatron",
            "overlap": self.overlap.model_dump(),
            "flash_attention": self.flash_attention,
        }
        return {name: value for name, value in fields.items() if value is not None}


class TrainingReader(ArgumentReader):
    """Reads `TrainingOptions`; what Megatron-LM refuses is gathered in ``problems``."""

    def options(self, tensor: int, tensor_overlap: float | None) -> TrainingOptions:
        """All options of a run of a tensor degree.

        Args:
            tensor_overlap: what --tp-comm-overlap hides, which the arguments do not say.
        """
        on, text = self.arguments.on, self.arguments.text
        precision, gradient = self._precision()
        sharding = self._sharding()
        if on("sequence-parallel") and tensor == 1:
            self.warn("sequence-parallel", "has no effect with tensor degree 1 (Megatron turns it off)")
        if text("optimizer") not in (None, "adam", "adamw"):
            self.refuse("optimizer", f"not supported yet: optimizer {text('optimizer')}")
        return TrainingOptions(
            precision=precision,
            gradient_dtype=gradient,
            data_sharding=sharding,
            sequence_parallel=on("sequence-parallel") and tensor > 1,
            recompute=self._recompute(),
            overlap=self._overlap(sharding, tensor_overlap),
            flash_attention=self._flash_attention(),
        )

    def _flash_attention(self) -> bool | None:
        backend = self.arguments.text("attention-backend")
        if self.arguments.on("use-flash-attn") or backend in ("flash", "fused"):
            return True
        if backend in ("unfused", "local"):
            return False
        self.warn(
            "attention-backend",
            "does not say whether attention is fused (--attention-backend): taken as not, which needs more "
            "memory",
        )
        return None

    def _precision(self) -> tuple[str, GradientDtype]:
        arguments = self.arguments
        if arguments.on("bf16") and arguments.on("fp16"):
            self.refuse("fp16", "--bf16 and --fp16 exclude each other")
        if arguments.on("bf16"):
            low = arguments.on("grad-reduce-in-bf16") or arguments.text("main-grads-dtype") == "bf16"
            precision = "fp8" if arguments.on("fp8-format") else "bf16"
            return precision, "bf16" if low else "fp32"
        if arguments.on("fp16"):
            return "fp16", "fp32" if arguments.on("accumulate-allreduce-grads-in-fp32") else "fp16"
        return "fp32", "fp32"

    def _sharding(self) -> DataSharding:
        arguments = self.arguments
        if arguments.on("use-torch-fsdp2"):
            return "parameters"
        strategy = arguments.text("data-parallel-sharding-strategy")
        if arguments.on("use-megatron-fsdp") or arguments.on("use-custom-fsdp"):
            if strategy is not None and strategy not in _SHARDING:
                self.refuse(
                    "data-parallel-sharding-strategy",
                    f"expected one of {', '.join(_SHARDING)}, got {strategy!r}",
                )
            shared = _SHARDING.get(strategy or "no_shard", "none")
            if shared != "none":
                return shared
        return "optimizer" if arguments.on("use-distributed-optimizer") else "none"

    def _overlap(self, sharding: DataSharding, share: float | None) -> Overlap:
        arguments = self.arguments
        gather = arguments.on("overlap-param-gather")
        if gather and sharding == "none":
            self.refuse("overlap-param-gather", "--overlap-param-gather needs --use-distributed-optimizer")
        if gather and not arguments.on("overlap-grad-reduce"):
            self.refuse("overlap-param-gather", "--overlap-param-gather needs --overlap-grad-reduce")
        tensor = 0.0
        if arguments.on("tp-comm-overlap"):
            tensor = share or 0.0
            if share is None:
                self.warn(
                    "tp-comm-overlap",
                    "--tp-comm-overlap does not say how much it hides: taken as nothing (overlap.tensor 0)",
                )
        return Overlap(
            gradient_reduce=arguments.on("overlap-grad-reduce"), parameter_gather=gather, tensor=tensor
        )

    def _recompute(self) -> Recompute:
        arguments = self.arguments
        granularity = arguments.text("recompute-granularity")
        if arguments.on("recompute-activations"):
            if granularity == "full":
                self.refuse(
                    "recompute-activations",
                    "--recompute-activations means selective, but granularity is full",
                )
            return "selective"
        if granularity is None:
            return "none"
        if granularity not in ("full", "selective"):
            self.refuse("recompute-granularity", f"expected full or selective, got {granularity!r}")
            return "none"
        method, units = arguments.text("recompute-method"), self.whole("recompute-num-layers")
        if granularity == "full":
            if method not in ("uniform", "block"):
                self.refuse(
                    "recompute-granularity", "full recompute needs --recompute-method uniform or block"
                )
            elif method == "block" or (units or 1) > 1:
                self.warn(
                    "recompute-method",
                    f"--recompute-method {method} over {units or 1} layers "
                    f"is taken as recompute of every layer on its own",
                )
            return "full"
        modules = arguments.text("recompute-modules")
        if modules is not None and modules.split() != ["core_attn"]:
            self.warn("recompute-modules", f"recomputes {modules}: taken as core attention only")
        return "selective"
