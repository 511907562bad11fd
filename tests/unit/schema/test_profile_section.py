"""Section ``compute`` of kind "profile": what is read, refused and said not to be used."""

from __future__ import annotations

from typing import Any

import pytest

from pipette_milp.errors import InputError
from pipette_milp.schema.instance import Instance
from tests.instance_cases import instance

ENTRY: dict[str, Any] = {
    "gpu_type": "gpu",
    "layer_kind": "dense",
    "tensor": 2,
    "context": 1,
    "micro_batch": 1,
    "sequence_length": 512,
    "precision": "bf16",
    "forward_s": "3 ms",
    "backward_s": 0.006,
    "activation_bytes": "40 MiB",
    "includes_tensor_comm": False,
    "source": "measured",
}


def profile(*changes: dict[str, Any], **section: Any) -> Instance:
    """An instance whose profile has one entry for each set of changes."""
    entries = [ENTRY | change for change in changes]
    return instance(compute={"kind": "profile", "entries": entries} | section)


def test_quantities_are_read_with_their_units() -> None:
    (entry,) = profile({}).compute.entries
    assert (entry.forward_s, entry.backward_s, entry.activation_bytes) == (0.003, 0.006, 40 * 2**20)
    assert profile({}).warnings == []


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ([], "compute.entries", "is empty"),
        ([{"gpu_type": "H100"}], "compute.entries[0].gpu_type", "there is no 'H100', only gpu"),
        ([{"layer_kind": "moe"}], "compute.entries[0].layer_kind", "the model has no experts"),
        ([{"layer_kind": "attention"}], "compute.entries[0].layer_kind", "'dense', 'moe'"),
        ([{"tensor": 3}], "compute.entries[0].tensor", "3 does not divide the model's 16"),
        ([{"forward_s": 0}], "compute.entries[0].forward_s", "expected more than 0"),
        ([{"backward_s": 0}], "compute.entries[0].backward_s", "expected more than 0"),
        ([{"forward_s": -1}], "compute.entries[0].forward_s", "not negative"),
        ([{"activation_bytes": 0}], "compute.entries[0].activation_bytes", "more than 0 bytes"),
        ([{"activation_bytes": "3 s"}], "compute.entries[0].activation_bytes", "bytes"),
        ([{"micro_batch": 0}], "compute.entries[0].micro_batch", "greater than or equal to 1"),
        ([{"seconds": 1}], "compute.entries[0].seconds", "unknown key"),
        ([{"layer_kind": "optimizer"}], "compute.entries[0].backward_s", "an optimizer step has none"),
        ([{}, {"forward_s": 1}], "compute.entries[1]", "for the same point as entries[0]"),
        (
            [{}, {"tensor": 4, "includes_tensor_comm": True}],
            "compute.entries[1].includes_tensor_comm",
            "must agree",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_its_place(
    changes: list[dict[str, Any]], place: str, message: str
) -> None:
    with pytest.raises(InputError) as refusal:
        profile(*changes)
    found = {problem.path: problem.message for problem in refusal.value.problems}
    assert message in found[place]


def test_entries_of_an_analytic_section_are_refused() -> None:
    with pytest.raises(InputError, match='expected "profile"'):
        profile({}, kind="analytic")


def test_tensor_degree_one_has_no_communication_to_disagree_on() -> None:
    assert len(profile({"includes_tensor_comm": True}, {"tensor": 1}).compute.entries) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sequence_length": 1024}, "1 of 2 are not used, their sequence_length is not 512"),
        ({"precision": "fp16"}, "1 of 2 are not used, their precision is not bf16"),
        ({"layer_kind": "head", "includes_tensor_comm": True}, "taken as they ran"),
    ],
)
def test_what_is_not_used_or_not_known_is_said(change: dict[str, Any], said: str) -> None:
    (warning,) = profile({}, change).warnings
    assert said in warning
