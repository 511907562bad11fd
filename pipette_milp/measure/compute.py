"""Layers timed on this machine's GPU or CPU: a compute profile, by tensor degree and micro-batch."""

from __future__ import annotations

import datetime
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipette_milp.errors import InputError, Problem
from pipette_milp.measure.layers import build_part
from pipette_milp.measure.session import load_torch
from pipette_milp.schema.instance import Instance

KINDS = ("dense", "embedding", "head", "optimizer")
DTYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
LEAST_RUNS = 3
RUN_S = 0.3
"""Each figure is the median of as many runs as fit in here, at least `LEAST_RUNS`, after two to warm up."""
LEARNING_RATE = 1e-4

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ComputeOptions:
    """What to measure."""

    tensors: Sequence[int] = (1,)
    micro_batches: Sequence[int] = (1,)
    precisions: Sequence[str] = ()
    """Left out: the instance's."""
    device: str | None = None
    kinds: Sequence[str] = KINDS


def measure_compute(
    instance: Instance, options: ComputeOptions, progress: Progress | None = None
) -> dict[str, Any]:
    """Section ``compute`` of an instance, kind "profile" (contract).

    Per entry: seconds forward and backward of one layer (or the embedding, or the head with its loss) and one
    micro-batch on one tensor rank, without tensor communication, recompute or sequence parallelism; bytes
    kept from forward to backward. ``optimizer`` is one Adam step over one layer's parameters, in
    ``forward_s``. What does not fit in memory is left out and said to ``progress``.

    Raises:
        InputError: no PyTorch, a degree that does not divide the model, experts or latent attention, a
            precision or device that is not there.
    """
    torch = load_torch()
    device = _device(torch, options.device)
    precisions = list(options.precisions) or [instance.training.precision]
    _check(instance, options, precisions)
    tell = progress or _quiet
    gpu_type = instance.cluster.nodes[0].gpu_type
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    source = (
        f"measured on {name} with PyTorch {torch.__version__} at "
        f"{datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')}"
    )
    entries = []
    for precision in precisions:
        for tensor in options.tensors:
            for micro_batch in options.micro_batches:
                for kind in options.kinds:
                    what = f"{kind}, tensor {tensor}, micro-batch {micro_batch}, {precision}"
                    try:
                        measured = _part(torch, device, instance, kind, tensor, micro_batch, precision)
                    except torch.cuda.OutOfMemoryError:
                        torch.cuda.empty_cache()
                        tell(f"{what}: does not fit in memory, left out")
                        continue
                    tell(f"{what}: {measured[0]:.6f} s forward, {measured[1]:.6f} s backward")
                    entries.append(
                        {
                            "gpu_type": gpu_type,
                            "layer_kind": kind,
                            "tensor": tensor,
                            "context": 1,
                            "micro_batch": micro_batch,
                            "sequence_length": instance.model.sequence_length,
                            "precision": precision,
                            "forward_s": measured[0],
                            "backward_s": measured[1],
                            "activation_bytes": measured[2],
                            "includes_tensor_comm": False,
                            "source": source,
                        }
                    )
    return {"kind": "profile", "entries": entries}


def _quiet(message: str) -> None:
    pass


def _device(torch: Any, wanted: str | None) -> Any:
    if wanted not in (None, "cpu", "cuda"):
        raise InputError(f"device {wanted!r}: expected cpu or cuda")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("PyTorch sees no GPU here: --device cpu measures this CPU")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", 0)


def _check(instance: Instance, options: ComputeOptions, precisions: Sequence[str]) -> None:
    model = instance.model
    problems = []
    for name in ("moe", "mla"):
        if getattr(model, name, None) is not None:
            problems.append(Problem(f"model.{name}", "layers of this kind are not measured yet"))
    for tensor in options.tensors:
        uneven = [
            f"{field} {value}"
            for field, value in (
                ("attention_heads", model.attention_heads),
                ("ffn_hidden_size", model.ffn_hidden_size),
            )
            if tensor < 1 or value % tensor
        ]
        if uneven:
            problems.append(Problem("--tensor", f"{tensor} does not divide {' and '.join(uneven)}"))
    problems += [
        Problem("--micro-batch", f"{size}: expected at least 1") for size in options.micro_batches if size < 1
    ]
    problems += [
        Problem("--precision", f"{precision!r}: expected {', '.join(DTYPES)}")
        for precision in precisions
        if precision not in DTYPES
    ]
    problems += [
        Problem("--kind", f"{kind!r}: expected {', '.join(KINDS)}")
        for kind in options.kinds
        if kind not in KINDS
    ]
    if problems:
        raise InputError(problems)


def _part(
    torch: Any, device: Any, instance: Instance, kind: str, tensor: int, micro_batch: int, precision: str
) -> tuple[float, float, int]:
    """Seconds forward and backward, bytes kept."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    dtype = getattr(torch, DTYPES[precision])
    module = build_part(torch, instance, "dense" if kind == "optimizer" else kind, tensor)
    module = module.to(device=device, dtype=dtype)
    if kind == "optimizer":
        return _optimizer_s(torch, device, module), 0.0, 0
    model = instance.model
    shape = micro_batch, model.sequence_length
    tokens = torch.randint(0, model.vocab_size, shape, device=device)
    hidden = torch.randn(*shape, model.hidden_size, dtype=dtype, device=device, requires_grad=True)
    arguments = {"dense": (hidden,), "embedding": (tokens,), "head": (hidden, tokens)}[kind]
    kept = kept_bytes(torch, module, lambda: module(*arguments))
    forward: list[float] = []
    backward: list[float] = []
    gradient = torch.ones_like(module(*arguments))

    def once() -> None:
        start = _now(torch, device)
        result = module(*arguments)
        middle = _now(torch, device)
        result.backward(gradient)
        forward.append(middle - start)
        backward.append(_now(torch, device) - middle)

    _repeat(once)
    return statistics.median(forward[2:]), statistics.median(backward[2:]), kept


def _optimizer_s(torch: Any, device: Any, module: Any) -> float:
    """One Adam step: fp32 master weights and moments, gradients in fp32."""
    parameters = [torch.nn.Parameter(parameter.detach().float().clone()) for parameter in module.parameters()]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=device.type == "cuda" or None)
    seconds: list[float] = []

    def once() -> None:
        start = _now(torch, device)
        optimizer.step()
        seconds.append(_now(torch, device) - start)

    _repeat(once)
    return statistics.median(seconds[2:])


def _repeat(once: Callable[[], None]) -> None:
    once()
    once()
    begin = time.monotonic()
    runs = 0
    while runs < LEAST_RUNS or time.monotonic() - begin < RUN_S:
        once()
        runs += 1


def _now(torch: Any, device: Any) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def kept_bytes(torch: Any, module: Any, run: Callable[[], Any]) -> int:
    """Bytes that a forward keeps for its backward, each storage once, parameters left out."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    storages: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    del result
    return sum(storages.values())
