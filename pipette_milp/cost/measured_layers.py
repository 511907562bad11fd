"""Layer times of a compute profile: measured figures in place of analytic ones, where entries cover them.

Between entries every figure is linear in the micro-batch at a measured tensor degree, and linear in
``1 / tensor`` between measured degrees: work and replicated parts are ``a + b / t``, and so is the payload
``(t - 1) / t`` of a collective. Outside the measured range the nearest entry is scaled by the ratio that the
analytic model gives, and a warning says so: refusing would leave a user who measured two micro-batches
with no plan at all, and a straight line through the last two points can end below zero. What has no entry is
analytic, also with a warning (`profile_warnings`).

Entries are without recompute and sequence parallelism. Recompute adds the measured forward (full) or the
analytic core of attention (selective); sequence parallelism scales by the analytic ratio. The backward is
split into the gradients of input and weights as the analytic one is. Measured figures are not scaled by
calibrated constants, which were fitted to analytic ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipette_milp.arrays import Array
from pipette_milp.cost.compute import ComputeModel, TaskTime
from pipette_milp.layer_shapes import LayerKind
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration
from pipette_milp.schema.profile import ProfiledKind, ProfileEntry

MOST_POINTS_NAMED = 3
"""Points named in one warning."""


@dataclass(frozen=True)
class Found:
    """What a profile says about one kind of layer at one point."""

    figures: Array | None
    """[3] seconds forward and backward, bytes kept (nan: not measured); None where nothing covers it."""
    note: str = ""
    """Why it is analytic or extrapolated; empty inside the measured range."""
    includes_tensor_comm: bool = False


@dataclass(frozen=True)
class MeasuredLayers:
    """The entries for one kind of GPU."""

    compute: ComputeModel
    entries: tuple[ProfileEntry, ...]
    _known: dict[tuple[object, ...], Found] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, instance: Instance, compute: ComputeModel) -> MeasuredLayers:
        """Entries of an instance for the GPU of ``compute`` at the instance's precision."""
        return cls(
            compute,
            tuple(
                entry
                for entry in instance.compute.entries
                if entry.gpu_type == compute.gpu.name and entry.precision == instance.training.precision
            ),
        )

    # ------------------------------------------------------------------ times
    def layer(self, kind: LayerKind, c: Configuration) -> TaskTime | None:
        """One layer as `ComputeModel.layer`; None where nothing covers it."""
        found = self.find(kind, c)
        if found.figures is None:
            return None
        again = 0.0
        base = self._layer(kind, c, sequence_parallel=False)
        parallel = c.sequence_parallel and not found.includes_tensor_comm
        plain = self._layer(kind, c, sequence_parallel=True) if parallel else base
        time = _split(found.figures, plain, base)
        if c.recompute == "full":
            again = time.forward_s
        elif c.recompute == "selective":
            again = self.compute.attention(self._tokens(c.micro_batch, c), c.tensor)[0]
        return TaskTime(time.forward_s, time.input_gradient_s + again, time.weight_gradient_s)

    def embedding(self, c: Configuration) -> TaskTime | None:
        """The embedding as `ComputeModel.embedding`; None where nothing covers it."""
        found = self.find("embedding", c)
        if found.figures is None:
            return None
        tokens = self._tokens(c.micro_batch, c)
        base = self.compute.embedding(tokens, sequence_parallel=False, tensor=c.tensor)
        parallel = c.sequence_parallel and not found.includes_tensor_comm
        plain = self.compute.embedding(tokens, sequence_parallel=parallel, tensor=c.tensor)
        return _split(found.figures, plain, base)

    def head(self, c: Configuration) -> TaskTime | None:
        """Head and loss as `ComputeModel.head`; None where nothing covers them."""
        found = self.find("head", c)
        if found.figures is None:
            return None
        plain = self.compute.head(self._tokens(c.micro_batch, c), c.tensor)
        return _split(found.figures, plain, plain)

    def step_s_per_parameter(self, tensor: int) -> tuple[float | None, str]:
        """Seconds a parameter of an unsharded Adam step, of the nearest measured tensor degree; and a note.

        An entry is one step over the parameters of a layer; repetitions count by their median.
        """
        steps = [entry for entry in self.entries if entry.layer_kind == "optimizer"]
        if not steps:
            return None, "no entry"
        degrees = sorted({entry.tensor for entry in steps})
        nearest = min(degrees, key=lambda degree: abs(np.log(degree / tensor)))
        seconds = statistics.median(entry.forward_s for entry in steps if entry.tensor == nearest)
        transformer = self.compute.transformer
        kind: LayerKind = "dense" if "dense" in transformer.layer_kinds else transformer.layer_kinds[0]
        note = "" if degrees[0] <= tensor <= degrees[-1] else f"tensor {_range(degrees)} measured"
        return seconds / transformer.layer_parameters(nearest, kind, 1), note

    # ------------------------------------------------------------------ memory
    def kept_bytes(self, kind: ProfiledKind, c: Configuration) -> float | None:
        """Bytes one rank keeps of a layer of a kind, or of embedding or head; None: not measured.

        Layers: under full recompute what is live while the layer is computed again.
        """
        found = self.find(kind, c)
        if found.figures is None or np.isnan(found.figures[2]):
            return None
        measured = float(found.figures[2])
        if kind != "dense" and kind != "moe":
            return measured
        parallel = c.sequence_parallel and not found.includes_tensor_comm
        own = self._layer_bytes(kind, c.tensor, sequence_parallel=parallel, recompute=c.recompute)
        return measured * own / self._layer_bytes(kind, c.tensor)

    # ------------------------------------------------------------------ interpolation
    def find(self, kind: ProfiledKind, c: Configuration) -> Found:
        """Figures at the tensor degree, context degree and micro-batch of a configuration."""
        key = (kind, c.tensor, c.context, c.micro_batch, c.expert)
        if key not in self._known:
            self._known[key] = self._find(kind, c)
        return self._known[key]

    def _find(self, kind: ProfiledKind, c: Configuration) -> Found:
        length = self.compute.transformer.model.sequence_length
        entries = [e for e in self.entries if e.layer_kind == kind and e.sequence_length == length]
        if not entries:
            return Found(None, "no entry")
        entries = [entry for entry in entries if entry.context == c.context]
        if not entries:
            return Found(None, f"no entry for context {c.context}")
        if kind == "moe" and c.expert > 1:
            return Found(None, "entries are for expert degree 1")
        # tensor degree 1 has nothing to communicate, whatever its entries say
        included = any(entry.includes_tensor_comm and entry.tensor > 1 for entry in entries)
        degrees = sorted({entry.tensor for entry in entries})
        below = [degree for degree in degrees if degree <= c.tensor]
        above = [degree for degree in degrees if degree >= c.tensor]
        outside = not below or not above
        if outside and included:
            # the analytic ratio is one of compute alone
            return Found(None, f"with communication only tensor {_range(degrees)} measured")
        low, high = (below[-1] if below else above[0]), (above[0] if above else below[-1])
        figures, notes = [], [f"tensor {_range(degrees)} measured"] if outside else []
        for degree in dict.fromkeys((low, high)):
            points = sorted((e for e in entries if e.tensor == degree), key=lambda e: e.micro_batch)
            sizes = [entry.micro_batch for entry in points]
            figures.append(self._along_micro_batches(points, c))
            if not sizes[0] <= c.micro_batch <= sizes[-1]:
                notes.append(f"micro-batch {_range(sizes)} measured")
        value = figures[0]
        if low < high:
            share = (1 / low - 1 / c.tensor) / (1 / low - 1 / high)
            value = (1 - share) * figures[0] + share * figures[1]
        elif outside:
            value = value * self._ratio(kind, c, (c.tensor, c.micro_batch), (low, c.micro_batch))
        return Found(value, " and ".join(dict.fromkeys(notes)), included and c.tensor > 1)

    def _along_micro_batches(self, points: Sequence[ProfileEntry], c: Configuration) -> Array:
        sizes = [entry.micro_batch for entry in points]
        columns = np.array([_figures(entry) for entry in points]).T
        if sizes[0] <= c.micro_batch <= sizes[-1]:
            return np.array([np.interp(c.micro_batch, sizes, column) for column in columns])
        nearest = points[0] if c.micro_batch < sizes[0] else points[-1]
        tensor = nearest.tensor
        return np.asarray(
            np.array(_figures(nearest))
            * self._ratio(nearest.layer_kind, c, (tensor, c.micro_batch), (tensor, nearest.micro_batch))
        )

    def _ratio(self, kind: ProfiledKind, c: Configuration, to: tuple[int, int], of: tuple[int, int]) -> Array:
        """[3] analytic figures at one (tensor, micro-batch) over those at another."""
        return self._analytic(kind, c, *to) / self._analytic(kind, c, *of)

    def _analytic(self, kind: ProfiledKind, c: Configuration, tensor: int, micro_batch: int) -> Array:
        tokens = self._tokens(micro_batch, c)
        if kind == "dense" or kind == "moe":
            time = self.compute.layer(tokens, tensor, sequence_parallel=False, recompute="none", kind=kind)
            kept = tokens * self._layer_bytes(kind, tensor)
        elif kind == "embedding":
            time = self.compute.embedding(tokens, sequence_parallel=False, tensor=tensor)
            kept = tokens  # token ids and masks, the same on every rank
        else:
            time = self.compute.head(tokens, tensor)
            kept = tokens * self.compute.transformer.padded_vocabulary(tensor) / tensor
        return np.array([time.forward_s, time.backward_s, kept])

    def _layer(self, kind: LayerKind, c: Configuration, *, sequence_parallel: bool) -> TaskTime:
        return self.compute.layer(
            self._tokens(c.micro_batch, c),
            c.tensor,
            sequence_parallel=sequence_parallel,
            recompute="none",
            kind=kind,
        )

    def _layer_bytes(
        self, kind: LayerKind, tensor: int, *, sequence_parallel: bool = False, recompute: str = "none"
    ) -> float:
        return self.compute.transformer.layer_activation_bytes(
            tensor,
            element_bytes=self.compute.element_bytes,
            sequence_parallel=sequence_parallel,
            flash=self.compute.training.flash_attention,
            recompute=recompute,
            kind=kind,
        )

    def _tokens(self, micro_batch: int, c: Configuration) -> float:
        return micro_batch * self.compute.transformer.model.sequence_length / c.context


def _figures(entry: ProfileEntry) -> tuple[float, float, float]:
    kept = np.nan if entry.activation_bytes is None else entry.activation_bytes
    return entry.forward_s, entry.backward_s, kept


def _split(figures: Array, plain: TaskTime, base: TaskTime) -> TaskTime:
    """Measured seconds as parts; ``plain`` over ``base`` is what sequence parallelism leaves of them."""
    forward = float(figures[0]) * plain.forward_s / base.forward_s
    backward = float(figures[1]) * plain.backward_s / base.backward_s
    weight = backward * plain.weight_gradient_s / plain.backward_s
    return TaskTime(forward, backward - weight, weight)


def _range(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return f"only {least}" if least == most else f"{least} to {most}"


def profile_warnings(
    measured: Sequence[MeasuredLayers], kinds: Sequence[LayerKind], configurations: Iterable[Configuration]
) -> list[str]:
    """What of these configurations no entry covers: analytic, or extrapolated."""
    points = {(c.tensor, c.context, c.micro_batch, c.expert): c for c in configurations}
    where: dict[str, list[str]] = {}
    for own in measured:
        for key in sorted(points):
            c = points[key]
            asked: tuple[ProfiledKind, ...] = (*kinds, "embedding", "head")
            for kind in asked:
                found = own.find(kind, c)
                if not found.note and found.figures is not None and np.isnan(found.figures[2]):
                    _note(where, own, kind, "has no activation_bytes: analytic", c)
                elif found.note:
                    what = "analytic" if found.figures is None else "extrapolated"
                    _note(where, own, kind, f"is {what} ({found.note})", c)
            rate, note = own.step_s_per_parameter(c.tensor)
            if note:
                _note(where, own, "optimizer", f"is {'analytic' if rate is None else 'scaled'} ({note})", c)
    warnings = []
    for text, named in where.items():
        distinct = list(dict.fromkeys(named))
        more = f" and {len(distinct) - MOST_POINTS_NAMED} more" if len(distinct) > MOST_POINTS_NAMED else ""
        at = "" if len(distinct) == len(points) else f" at {', '.join(distinct[:MOST_POINTS_NAMED])}{more}"
        warnings.append(f"compute.entries: {text}{at}")
    return warnings


def _note(where: dict[str, list[str]], own: MeasuredLayers, kind: str, text: str, c: Configuration) -> None:
    context = f" context {c.context}" if c.context > 1 else ""
    point = f"tensor {c.tensor}{context} micro-batch {c.micro_batch}"
    where.setdefault(f"{kind} on {own.compute.gpu.name} {text}", []).append(point)
