"""Reading what commands are given: instances with gaps, plans, partial configurations, results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pipette_milp.errors import InputError

if TYPE_CHECKING:
    from pipette_milp.schema.constants import CostConstants
    from pipette_milp.schema.instance import Instance
    from pipette_milp.schema.plan import Configuration, Plan
    from pipette_milp.schema.result import SolveResult

PROBE_BYTES = 100 * 2**20
"""Message size of the suggested measurement: large, as the paper's own profile used (96 MiB)."""
MANY_PAIRS = 12
"""More unmeasured pairs than this are measured by one command over all their nodes."""

CONSTANTS = "constants"
"""Key of a result's settings: the constants of the cost model where they are not the shipped ones."""
ASSUME_MISSING = "assume_missing_bytes_per_s"
"""Key of a result's settings: what unmeasured pairs were taken to attain."""


def read_instance(path: str, assume_missing: str | None = None) -> Instance:
    """An instance without unmeasured pairs.

    Raises:
        InputError: anything wrong with it, or unmeasured pairs and nothing assumed for them; the message
            has the command lines that would measure them.
    """
    from pipette_milp.schema.instance import load_instance
    from pipette_milp.units import Dimension, parse_quantity

    instance = _with_constants(load_instance(path))
    missing = instance.missing_pairs()
    if assume_missing is not None:
        try:
            value = parse_quantity(assume_missing, Dimension.BANDWIDTH)
        except ValueError as error:
            raise InputError(str(error), source="--assume-missing") from None
        if value <= 0:
            raise InputError("expected more than 0 bytes/s", source="--assume-missing")
        return instance.with_missing(value)
    if missing:
        raise InputError(_missing_message(instance, missing), source=path)
    return instance


def read_instance_of(path: str, result: SolveResult) -> Instance:
    """The instance a result was found for, unmeasured pairs and constants as its settings say.

    Raises:
        InputError: unreadable, or another instance than the result names.
    """
    from pipette_milp.schema.constants import CostConstants
    from pipette_milp.schema.instance import load_instance
    from pipette_milp.schema.strict import validate

    instance = load_instance(path)
    assumed = result.settings.get(ASSUME_MISSING)
    if isinstance(assumed, int | float) and assumed > 0:
        instance = instance.with_missing(float(assumed))
    used = result.settings.get(CONSTANTS)
    if isinstance(used, dict):
        instance = instance.with_constants(validate(CostConstants, used, f"{path}: settings.{CONSTANTS}"))
    else:
        instance = _with_constants(instance)
    if instance.sha256() != result.instance_sha256:
        raise InputError(
            f"the result was found for another instance: it names {result.instance_sha256[:12]}, "
            f"this one is {instance.sha256()[:12]}",
            source=path,
        )
    return instance


def _with_constants(instance: Instance) -> Instance:
    """The instance with the constants of ``--constants``, if given.

    Raises:
        InputError: the file is unreadable, or a constant is outside its plausible range.
    """
    constants = chosen_constants()
    return instance if constants is None else instance.with_constants(constants)


def chosen_constants() -> CostConstants | None:
    """Constants of ``--constants``; None = the shipped ones.

    Raises:
        InputError: the file is unreadable, or a constant is outside its plausible range.
    """
    from pipette_milp.cli import common
    from pipette_milp.schema.constants import load_constants

    if common.constants is None:
        return None
    if not common.constants:
        raise InputError("needs a file name", source="--constants")
    return load_constants(common.constants)


def _missing_message(instance: Instance, missing: list[tuple[str, str]]) -> str:
    inter_node = instance.cluster.network.inter_node
    cards = [nics.count for node in instance.cluster.nodes if (nics := instance.cluster.nics_of(node))]
    flows = (
        inter_node.flows_per_pair
        if inter_node is not None and inter_node.measures == "flow"
        else max(cards, default=1)
    )
    lines = [f"{len(missing)} directed node pairs were not measured:"]
    lines += [f"  {sender} -> {receiver}" for sender, receiver in missing]
    lines.append("Commands that would measure them, both directions at once:")
    pairs = list(dict.fromkeys(tuple(sorted(pair)) for pair in missing))
    groups = (
        [sorted({name for pair in pairs for name in pair})]
        if len(pairs) > MANY_PAIRS
        else [list(p) for p in pairs]
    )
    for names in groups:
        hosts = ",".join(f"{name}:{flows}" for name in names)
        lines.append(f"  mpirun -np {len(names) * flows} --host {hosts} mpiGraph {PROBE_BYTES} 10 10")
    lines.append("Or say what to take for them: --assume-missing 15GB/s")
    return "\n".join(lines)


def read_baseline(path: str, instance: Instance) -> Configuration | Plan:
    """A plan, the plan of a result, or a configuration whose derivable fields may be left out.

    Raises:
        InputError: none of them.
    """
    from pipette_milp.partial_configuration import complete_configuration
    from pipette_milp.schema.result import load_plan
    from pipette_milp.schema.strict import parse_json, read_text

    value = parse_json(read_text(path), path)
    if isinstance(value, dict) and ("termination" in value or "placement" in value):
        return load_plan(path)
    if isinstance(value, dict) and isinstance(value.get("configuration"), dict):
        value = value["configuration"]
    return complete_configuration(value, instance, source=path)


def read_plan(path: str, instance_path: str) -> tuple[Instance, Plan]:
    """A plan and the instance it is for; a result must be of this instance.

    Raises:
        InputError: unreadable, no plan in it, or a result of another instance.
    """
    from pipette_milp.schema.plan import Plan
    from pipette_milp.schema.result import SolveResult
    from pipette_milp.schema.strict import parse_json, read_text, validate

    value = parse_json(read_text(path), path)
    if not isinstance(value, dict) or "termination" not in value:
        return read_instance(instance_path), validate(Plan, value, path)
    result = validate(SolveResult, value, path)
    if result.plan is None:
        raise InputError("this result has no plan", source=path)
    return read_instance_of(instance_path, result), result.plan


def seconds(text: str, option: str) -> float:
    """``60``, ``"90 s"`` or ``"2 min"`` as seconds above zero.

    Raises:
        InputError: anything else.
    """
    from pipette_milp.units import Dimension, parse_quantity

    plain: Any = float(text) if re.fullmatch(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", text) else text
    try:
        value = parse_quantity(plain, Dimension.TIME)
    except ValueError as error:
        raise InputError(str(error), source=option) from None
    if value <= 0:
        raise InputError(f"expected more than 0 seconds, got {text}", source=option)
    return value
