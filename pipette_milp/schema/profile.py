"""Entries of a compute profile: layer times measured on a GPU, one entry a point.

An entry is the time of one tensor rank for one micro-batch of one layer (or the embedding, or the head with
its loss), without recompute and without sequence parallelism: both are added from what the entry says.
``optimizer`` is one unsharded Adam step over the parameters of one layer, in ``forward_s``, whatever the
micro-batch. With ``includes_tensor_comm`` the collectives of the tensor group are in the times, and the entry
is taken as it ran, sequence parallelism included.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from pipette_milp.schema.plan import FrozenModel
from pipette_milp.schema.quantities import Count, Flag, Seconds
from pipette_milp.schema.strict import Location, problems_error
from pipette_milp.schema.training import Precision
from pipette_milp.units import Dimension, parse_quantity

ProfiledKind = Literal["dense", "moe", "embedding", "head", "optimizer"]
LAYER_KINDS: tuple[ProfiledKind, ...] = ("dense", "moe")

KeptBytes = Annotated[
    float,
    BeforeValidator(lambda value: parse_quantity(value, Dimension.BYTES)),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}),
]
"""May be zero, as of an optimiser step."""


class ProfileEntry(FrozenModel):
    """One measured point."""

    gpu_type: str = Field(min_length=1)
    """A key of ``cluster.gpu_types``."""
    layer_kind: ProfiledKind
    tensor: Count
    context: Count = 1
    micro_batch: Count
    sequence_length: Count
    precision: Precision
    forward_s: Seconds
    backward_s: Seconds
    activation_bytes: KeptBytes | None = None
    """Kept from forward to backward by one rank; None = the analytic figure."""
    includes_tensor_comm: Flag = False
    source: str = ""

    @property
    def series(self) -> tuple[str, str, int, int, str]:
        """What all entries that are interpolated with this one have in common."""
        return self.gpu_type, self.layer_kind, self.context, self.sequence_length, self.precision


def check_entries(entries: tuple[ProfileEntry, ...]) -> None:
    """What a profile cannot be.

    Raises:
        PydanticCustomError: times or bytes that are zero where work is done, two entries for one point, or
            entries with and without tensor communication that would be interpolated.
    """
    problems: list[tuple[Location, str]] = []
    seen: dict[tuple[object, ...], int] = {}
    with_comm: dict[tuple[object, ...], tuple[int, bool]] = {}
    for index, entry in enumerate(entries):
        problems += [((index, name), message) for name, message in _impossible(entry)]
        if entry.layer_kind == "optimizer":
            continue  # its micro-batch means nothing: further entries are repetitions
        point = (*entry.series, entry.tensor, entry.micro_batch)
        first = seen.setdefault(point, index)
        if first != index:
            problems.append(((index,), f"is for the same point as entries[{first}]: keep one"))
        if entry.tensor == 1:
            continue  # nothing to communicate
        earlier, included = with_comm.setdefault(entry.series, (index, entry.includes_tensor_comm))
        if included != entry.includes_tensor_comm:
            problems.append(
                (
                    (index, "includes_tensor_comm"),
                    f"is {str(entry.includes_tensor_comm).lower()}, that of entries[{earlier}] is "
                    f"{str(included).lower()}: entries that are interpolated must agree",
                )
            )
    if problems:
        raise problems_error(problems)


def _impossible(entry: ProfileEntry) -> list[tuple[str, str]]:
    found = []
    if entry.forward_s <= 0:
        found.append(("forward_s", "expected more than 0 seconds"))
    if entry.layer_kind == "optimizer":
        if entry.backward_s > 0:
            found.append(("backward_s", "an optimizer step has none: expected 0, its time is forward_s"))
        if entry.activation_bytes:
            found.append(("activation_bytes", "an optimizer step keeps none: expected 0"))
        return found
    if entry.backward_s <= 0:
        found.append(("backward_s", "expected more than 0 seconds"))
    if entry.layer_kind in LAYER_KINDS and entry.activation_bytes == 0:
        found.append(("activation_bytes", "expected more than 0 bytes; leave it out for the analytic figure"))
    return found
