"""What a certificate says about one configuration: duals, and cases that cover everything.

The proof of a family against a target: *no plan of it takes less than the target*.

    proof    cases of the layer splits, by the first stage with at least so many layers (or one case: all)
    case     duals of the split model; where these do not reach the target, a step or several
    step     duals of the pattern model over a partition of the nodes; all but the last only narrow down what
             nodes may hold

Times are in units of the family's cheapest bound. Duals of rows of the models are by the row's number, those
of path cuts and pairs of stages in the order in which these are named.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field, JsonValue

from pipette_milp.schema.plan import Configuration, FrozenModel
from pipette_milp.schema.strict import parse_json, validate


def family_of(configuration: Configuration) -> dict[str, JsonValue]:
    """What names a family: its configuration without layers."""
    named: dict[str, JsonValue] = configuration.model_dump(
        mode="json", exclude={"stages", "layers_per_stage"}
    )
    return named


def family_key(configuration: Configuration) -> str:
    """`family_of` as text."""
    return json.dumps(family_of(configuration), sort_keys=True)


class Path(FrozenModel):
    """The longest path to the end of stage ``end`` for these durations; what they are does not matter."""

    end: int = Field(ge=0)
    layers: tuple[float, ...]
    """[V] of every virtual stage, not always whole."""
    hop_forward: tuple[float, ...]
    """[V-1]"""
    hop_backward: tuple[float, ...]


class Duals(FrozenModel):
    """Multipliers of rows; those left out are 0."""

    rows: tuple[tuple[int, float], ...] = ()
    cuts: tuple[tuple[int, float], ...] = ()
    """Number of a path of the proof, and its dual."""
    pairs: tuple[tuple[int, int, tuple[float, ...]], ...] = ()
    """Two stages that meet on nodes, and the duals of their rows."""


class Step(FrozenModel):
    """The pattern model over a partition of the nodes."""

    partition: Literal["one", "links"]
    """Nodes with equal places together, or the groups found from the links."""
    duals: Duals


class Case(FrozenModel):
    """A part of the layer splits."""

    duals: Duals
    """Of the split model: they reach the target, or price hops and rings for the steps."""
    start: Duals = Duals()
    """Those that bound the start of the optimiser step from below."""
    finish: tuple[Duals, ...] = ()
    """[p] those that bound the end of every stage; none: 0."""
    steps: tuple[Step, ...] = ()


class Proof(FrozenModel):
    """Why no plan of a family takes less than the target."""

    family: dict[str, JsonValue]
    """The configuration without its layers."""
    paths: tuple[Path, ...]
    least_layers: tuple[int, ...] = ()
    """[V] case ``j`` holds the splits in which stage ``j`` is the first with at least so many layers;
    empty: one case holds all."""
    cases: tuple[Case | None, ...]
    """None: no split within the layer bounds is in this case."""

    @property
    def key(self) -> str:
        """`family_key` of the family."""
        return json.dumps(self.family, sort_keys=True)


class Certificate(FrozenModel):
    """Proofs of the lower bound of a result, of the configurations that no closed form settles."""

    schema_version: Literal[1] = 1
    instance_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    lower_bound_s: float = Field(gt=0)
    """The bound that is proven, seconds of an iteration of ``global_batch_size`` sequences."""
    global_batch_size: int = Field(gt=0)
    proofs: tuple[Proof, ...] = ()
    unproven: int = Field(default=0, ge=0)
    """Configurations for which no proof was found: they rest on the search's solvers."""

    def to_json(self) -> str:
        """Text of the certificate file, one proof a line."""
        head = self.model_dump(mode="json", exclude={"proofs"})
        lines = ",\n".join(proof.model_dump_json() for proof in self.proofs)
        return json.dumps(head)[:-1] + ', "proofs": [\n' + lines + "\n]}\n"

    @classmethod
    def from_json(cls, text: str, source: str = "") -> Certificate:
        """Reads a certificate.

        Raises:
            InputError: not JSON, or no certificate; every problem with its JSON path.
        """
        return validate(cls, parse_json(text, source), source)
