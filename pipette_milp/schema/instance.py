"""An instance: a model, how it is trained, a cluster, and what may be chosen."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, JsonValue, ValidationError, model_validator

from pipette_milp.schema.cluster import ClusterSection
from pipette_milp.schema.constants import CostConstants
from pipette_milp.schema.contradictions import contradictions
from pipette_milp.schema.model import ModelSection
from pipette_milp.schema.plan import FrozenModel
from pipette_milp.schema.search import ComputeSection, KnownSection, SearchSection
from pipette_milp.schema.strict import (
    Location,
    input_error,
    parse_json,
    problems_error,
    read_text,
    structural_problems,
    validation_problems,
)
from pipette_milp.schema.training import TrainingSection

if TYPE_CHECKING:
    import pandas as pd

    from pipette_milp.schema.frames import InstanceTable

SECTIONS: dict[str, type[FrozenModel]] = {
    "model": ModelSection,
    "training": TrainingSection,
    "cluster": ClusterSection,
    "compute": ComputeSection,
    "search": SearchSection,
}


class Instance(FrozenModel):
    """Everything the optimiser is told, in SI units. Attribute names are those of the file."""

    schema_version: Literal[1]
    name: str = Field(min_length=1)
    provenance: JsonValue = ""
    """Where the figures come from: a sentence, or an object by JSON path."""
    model: ModelSection
    training: TrainingSection
    cluster: ClusterSection
    compute: ComputeSection = ComputeSection()
    search: SearchSection = SearchSection()
    known: KnownSection | None = None

    @model_validator(mode="after")
    def _contradictions(self) -> Instance:
        problems = contradictions(self.model, self.training, self.cluster, self.search, self.compute)
        if problems:
            raise problems_error(problems)
        return self

    def sha256(self) -> str:
        """Names the content: equal for two files that mean the same after validation."""
        text = json.dumps(
            self.model_dump(mode="json"),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=True,
            allow_nan=False,
        )
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def warnings(self) -> list[str]:
        """What was read but changes nothing, and what a reader of the result should know."""
        found = []
        for name, node_type in self.cluster.node_types.items():
            if node_type.nics is not None and node_type.nics.of_gpu is not None:
                place = f"cluster.node_types.{name}.nics.of_gpu"
                found.append(f"{place} is not modelled: the cards of a node are shared evenly by its GPUs")
        if self.cluster.network.rails is not None:
            found.append("cluster.network.rails is not modelled: any card reaches any card")
        found += self._unused_entries()
        return found

    def _unused_entries(self) -> list[str]:
        """Entries of the compute profile that nothing here asks for."""
        found = []
        used_types = {node.gpu_type for node in self.cluster.nodes}
        for name, value in (
            ("sequence_length", self.model.sequence_length),
            ("precision", self.training.precision),
        ):
            # an optimizer step knows no sequence
            others = [
                entry
                for entry in self.compute.entries
                if getattr(entry, name) != value
                and (name != "sequence_length" or entry.layer_kind != "optimizer")
            ]
            if others:
                found.append(
                    f"compute.entries: {len(others)} of {len(self.compute.entries)} are not used, their "
                    f"{name} is not {value}"
                )
        elsewhere = [entry for entry in self.compute.entries if entry.gpu_type not in used_types]
        if elsewhere:
            found.append(f"compute.entries: {len(elsewhere)} are not used, no node has their gpu_type")
        if any(entry.includes_tensor_comm and entry.tensor > 1 for entry in self.compute.entries):
            found.append(
                "compute.entries: times with tensor communication are taken as they ran, whether a plan has "
                "sequence parallelism or not"
            )
        return found

    def to_pandas(self, table: InstanceTable = "nodes") -> pd.DataFrame:
        """A table of the instance.

        Args:
            table: ``nodes`` (GPU type, GPUs, how many of them are excluded, first GPU id of each node) or
                ``links`` (row = sender, column = receiver, bytes/s of the node pair, nan = not measured).

        Raises:
            InputError: no such table.
        """
        from pipette_milp.schema.frames import instance_frame

        return instance_frame(self, table)

    def _repr_html_(self) -> str:
        from pipette_milp.schema.display import instance_html

        return instance_html(self)

    def missing_pairs(self) -> list[tuple[str, str]]:
        """(sender, receiver) names of node pairs in use whose bandwidth was not measured."""
        inter_node = self.cluster.network.inter_node
        if inter_node is None or not isinstance(inter_node.bandwidth, tuple):
            return []
        nodes = self.cluster.nodes
        used = self.cluster.usable_nodes()
        return [
            (nodes[i].name, nodes[j].name)
            for i, row in enumerate(inter_node.bandwidth)
            for j, value in enumerate(row)
            if i != j and value is None and i in used and j in used
        ]

    def with_constants(self, constants: CostConstants) -> Instance:
        """A copy whose costs use these constants."""
        compute = self.compute.model_copy(update={"constants": constants})
        return self.model_copy(update={"compute": compute})

    def with_missing(self, bytes_per_s: float) -> Instance:
        """A copy whose unmeasured pairs are taken to attain ``bytes_per_s`` (in the matrix's meaning)."""
        inter_node = self.cluster.network.inter_node
        if inter_node is None or not isinstance(inter_node.bandwidth, tuple):
            return self
        matrix = tuple(
            tuple(bytes_per_s if value is None and i != j else value for j, value in enumerate(row))
            for i, row in enumerate(inter_node.bandwidth)
        )
        filled = inter_node.model_copy(update={"bandwidth": matrix})
        network = self.cluster.network.model_copy(update={"inter_node": filled})
        return self.model_copy(update={"cluster": self.cluster.model_copy(update={"network": network})})


def load_instance(source: str | Path | dict[str, Any]) -> Instance:
    """Reads an instance from a file, from standard input (``-``) or from a parsed JSON object.

    Raises:
        InputError: anything that is wrong, all of it at once, each with its JSON path.
    """
    if isinstance(source, dict):
        return parse_instance(source)
    name = "standard input" if str(source) == "-" else str(source)
    return parse_instance(parse_json(read_text(source), name), name)


def parse_instance(value: Any, source: str = "") -> Instance:
    """An instance from parsed JSON; ``source`` heads the message."""
    problems = structural_problems(value)
    places = {location for location, _ in problems}
    instance = None
    try:
        instance = Instance.model_validate(value)
    except ValidationError as error:
        problems += [item for item in validation_problems(error, Instance) if item[0] not in places]
        problems += contradictions_of_valid_sections(value)
    if instance is None or problems:
        raise input_error(problems, source)
    return instance


def contradictions_of_valid_sections(value: Any) -> list[tuple[Location, str]]:
    """Contradictions that are visible although some other section could not be read."""
    sections: dict[str, Any] = {}
    for name, section in SECTIONS.items():
        try:
            sections[name] = section.model_validate(value[name])
        except (ValidationError, KeyError, TypeError):
            sections[name] = None
    return contradictions(
        sections["model"],
        sections["training"],
        sections["cluster"],
        sections["search"],
        sections["compute"],
    )
