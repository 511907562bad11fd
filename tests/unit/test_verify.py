"""A result of the exhaustive solver is accepted; changed anywhere, it is refused."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipette_milp.assessment import assess
from pipette_milp.certificates import NO_PLAN_S, Ground, recheck_bounds
from pipette_milp.cost.build import CostModel
from pipette_milp.errors import InputError, VerificationError
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.result import SolveResult
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers import solve
from pipette_milp.verify import TOLERANCE, Report, verify
from pipette_milp.verify.claims import differences
from pipette_milp.verify.plan_claims import memory_faults
from tests.instance_cases import configuration, instance

Document = dict[str, Any]


@pytest.fixture(scope="module")
def problem() -> Instance:
    return instance(
        training={"data_sharding": ["none", "optimizer"], "global_batch_size": 8},
        search={"micro_batch": [1, 2], "pipeline": [1, 2, 3]},
    )


@pytest.fixture(scope="module")
def answer(problem: Instance) -> Document:
    """The result file of a complete search, parsed."""
    baseline = configuration((4, 2), data=2, num_micro_batches=4)
    result = solve(problem, solver="exhaustive", threads=1, baseline=baseline, time_limit_s=100.0)
    document: Document = json.loads(result.to_json())
    assert document["termination"] == "OPTIMAL"
    assert len(document["plans"]) >= 3
    return document


def check(problem: Instance, document: Document) -> Report:
    return verify(problem, SolveResult.from_json(json.dumps(document)))


def changed(document: Document, change: Callable[[Document], object]) -> Document:
    copied = copy.deepcopy(document)
    change(copied)
    return copied


def test_a_true_result_is_accepted(problem: Instance, answer: Document) -> None:
    report = check(problem, answer)
    assert report.failed == ()
    report.require()
    by_name = {claim.claim: claim for claim in report.claims}
    assert by_name["simulated_s"].how == "recomputed"
    whole = by_name["lower_bound_s: no plan of any configuration is faster"]
    assert whole.how == "re-checked", whole.detail
    assert "by enumeration" in whole.detail
    assert len(by_name) == len(report.claims)


def test_left_out_parts_claim_nothing(problem: Instance, answer: Document) -> None:
    def drop(document: Document) -> None:
        for plan in (document, *document["plans"]):
            for part in ("durations", "order", "critical_path", "breakdown", "throughput", "memory"):
                plan[part] = None
        document["baseline"] = None
        document["trace"] = []

    report = check(problem, changed(answer, drop))
    assert report.ok
    assert "memory" not in {claim.claim for claim in report.claims}


def times_not_as_stated(factor: float) -> Callable[[Document], object]:
    """All that depends on the time changed together, so that the document stays possible."""

    def change(document: Document) -> None:
        for key in ("simulated_s", "lower_bound_s"):
            document[key] *= factor
        document["trace"] = []

    return change


def family(document: Document, **fields: Any) -> Document:
    """The first record of a legal configuration with these fields."""
    for record in document["configurations"]:
        stated = record["configuration"]
        if "stages" in stated and all(stated[key] == value for key, value in fields.items()):
            return record  # type: ignore[no-any-return]
    raise AssertionError(f"no configuration with {fields}")


def open_one(document: Document) -> Document:
    """A record that is not the best plan's."""
    return next(r for r in document["configurations"] if r["status"] not in ("solved", "refused"))


TAMPERED: list[tuple[str, Callable[[Document], object], str]] = [
    ("time 1e-6 lower", times_not_as_stated(1 - 1e-6), "simulated_s"),
    ("time 1e-6 higher", times_not_as_stated(1 + 1e-6), "simulated_s"),
    ("a duration", lambda d: d["durations"]["gradient_sync_s"].__setitem__(0, 1e-3), "durations"),
    ("a task left out", lambda d: d["order"][0].pop(), "order"),
    (
        "path",
        lambda d: d["critical_path"].update(compute_s=d["critical_path"]["compute_s"] * 1.01),
        "critical",
    ),
    ("breakdown", lambda d: d["breakdown"].update(replica=d["breakdown"]["replica"] + 1), "breakdown"),
    ("throughput", lambda d: d["throughput"].update(mfu=0.99), "throughput"),
    ("convention", lambda d: d["throughput"].update(flop_convention="more"), "throughput"),
    ("memory", lambda d: d["memory"]["per_stage"][0].update(peak_bytes=1.0), "memory"),
    ("capacity", lambda d: d["memory"]["per_stage"][0].update(usable_bytes=1e12), "memory"),
    ("default order", lambda d: d.update(default_order_s=9.0), "default_order_s"),
    ("no default order", lambda d: d.update(default_order_s=None), "default_order_s"),
    ("links", lambda d: d.update(links="measured"), "links"),
    ("baseline time", lambda d: d["baseline"].update(simulated_s=9.0), "baseline"),
    ("baseline fits", lambda d: d["baseline"].update(fits=False), "baseline"),
    (
        "baseline of other layers",
        lambda d: d["baseline"].update(
            configuration=configuration((3, 2), data=2, num_micro_batches=4).model_dump(mode="json")
        ),
        "baseline",
    ),
    ("a GPU twice", lambda d: d["plan"]["placement"]["gpu_of_rank"].__setitem__(0, 3), "plan: well formed"),
    ("a GPU too many", lambda d: d["plan"]["placement"]["gpu_of_rank"].append(4), "plan: well formed"),
    (
        "an unknown GPU",
        lambda d: d["plan"]["placement"]["gpu_of_rank"].__setitem__(0, 99),
        "plan: well formed",
    ),
    (
        "next best: GPU twice",
        lambda d: d["plans"][1]["placement"]["gpu_of_rank"].__setitem__(0, 3),
        "plans[1]",
    ),
    (
        "next best: time",
        lambda d: d["plans"][1].update(simulated_s=d["plans"][1]["simulated_s"] * 1.01),
        "plans[1]",
    ),
    ("next best: bound", lambda d: d["plans"][1].update(lower_bound_s=9.0), "plans[1]"),
    ("order of plans", lambda d: d["plans"].reverse(), "plans: best first"),
    ("plans without the best", lambda d: d["plans"].pop(0), "plans: best first"),
    ("a plan twice", lambda d: d["plans"].insert(1, d["plans"][0]), "plans: best first"),
    (
        "indistinguishable",
        lambda d: d["plans"][-1].update(indistinguishable=not d["plans"][-1]["indistinguishable"]),
        "plans: best first",
    ),
    ("a family missing", lambda d: d["configurations"].remove(open_one(d)), "every legal one"),
    ("a family twice", lambda d: d["configurations"].append(open_one(d)), "every legal one"),
    (
        "a family of another batch",
        lambda d: open_one(d)["configuration"].update(num_micro_batches=64),
        "every legal one",
    ),
    (
        "layers lost in a record",
        lambda d: open_one(d).update(configuration=lost_layers(d)),
        "every legal one",
    ),
    ("legal but refused", lambda d: open_one(d).update(status="refused"), "status"),
    (
        "a refusal made up",
        lambda d: d["configurations"].append({"configuration": {"tensor": 2}, "status": "refused"}),
        "refusals",
    ),
    ("a refusal left out", lambda d: d["configurations"].remove(refused(d)), "refusals"),
    ("a refusal's reason", lambda d: refused(d).update(reason="because"), "refusals"),
    ("two solved", lambda d: open_one(d).update(status="solved"), "status"),
    ("a better plan unreported", lambda d: open_one(d).update(best_s=1e-6, lower_bound_s=1e-7), "status"),
    ("a bound above its plan", lambda d: open_one(d).update(lower_bound_s=9.0), "status"),
    (
        "bounded out by nothing",
        lambda d: open_one(d).update(status="bounded_out", lower_bound_s=1e-6),
        "status",
    ),
    ("a low bound", lambda d: open_one(d).update(status="open", lower_bound_s=1e-6), "lower_bound_s"),
    ("no bound", lambda d: open_one(d).update(status="open", lower_bound_s=None), "lower_bound_s"),
    (
        "the bound of one configuration",
        lambda d: d["configurations"][0].update(lower_bound_s=9.0, best_s=9.0),
        "configurations: lower_bound_s of each",
    ),
    ("infeasible with a plan", lambda d: open_one(d).update(status="infeasible"), "status"),
    (
        "infeasible without one",
        lambda d: open_one(d).update(status="infeasible", best_s=None, lower_bound_s=None),
        "infeasible configurations have no plan",
    ),
    (
        "trace: bound falls",
        lambda d: d["trace"].insert(
            -1, {"time_s": d["trace"][-1]["time_s"], "bound_s": 1e-9, "incumbent_s": d["simulated_s"]}
        ),
        "trace",
    ),
    (
        "trace: incumbent rises",
        lambda d: d["trace"].insert(-1, {**d["trace"][-1], "incumbent_s": 9.0}),
        "trace",
    ),
    ("trace: time goes back", lambda d: d["trace"][0].update(time_s=1e6), "trace"),
    ("trace: ends elsewhere", lambda d: d["trace"][-1].update(incumbent_s=d["simulated_s"] * 1.01), "trace"),
    ("trace: bound above", lambda d: d["trace"][0].update(bound_s=9.0, incumbent_s=8.0), "trace"),
    ("stopped too early", lambda d: d.update(termination="LIMIT"), "termination"),
    ("wanted less", lambda d: d.update(claimed_s=1.0, recomputed_s=1.1), "claimed_s"),
    ("another instance", lambda d: d.update(instance_sha256="0" * 64), "instance_sha256"),
]


def refused(document: Document) -> Document:
    return next(r for r in document["configurations"] if r["status"] == "refused")


def lost_layers(document: Document) -> Document:
    stated = copy.deepcopy(open_one(document)["configuration"])
    stated["stages"][0]["layers"] -= 1
    del stated["layers_per_stage"]
    return stated


@pytest.mark.parametrize(("change", "claim"), [c[1:] for c in TAMPERED], ids=[c[0] for c in TAMPERED])
def test_a_changed_result_is_refused(
    problem: Instance, answer: Document, change: Callable[[Document], object], claim: str
) -> None:
    report = check(problem, changed(answer, change))
    failed = {one.claim: one.detail for one in report.failed}
    assert any(claim in name for name in failed), failed
    assert all(failed.values())
    with pytest.raises(VerificationError):
        report.require()


def record_of(document: Document, rank: int) -> Document:
    """The record of the configuration of a ranked plan."""
    wanted = document["plans"][rank]["configuration"]
    return next(r for r in document["configurations"] if r["configuration"] == wanted)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda d: open_one(d).update(
                best_s=0.99 * d["simulated_s"], lower_bound_s=0.98 * d["simulated_s"]
            ),
            "beats the plan reported as best",
        ),
        (lambda d: record_of(d, 1).update(best_s=1.01 * d["plans"][1]["simulated_s"]), "its plan takes"),
        (
            lambda d: open_one(d).update(status="bounded_out", lower_bound_s=0.9 * d["simulated_s"]),
            "leaves room for a better plan",
        ),
    ],
)
def test_what_a_status_lacks(
    problem: Instance, answer: Document, change: Callable[[Document], object], says: str
) -> None:
    failed = {one.claim: one.detail for one in check(problem, changed(answer, change)).failed}
    assert says in failed["configurations: status, bound and best plan agree"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(lower_bound_s=d["simulated_s"] * 1.001), "is above simulated_s"),
        (lambda d: d.update(gap=-0.1), "gap"),
        (lambda d: d.update(gap=0.5), "is not"),
        (lambda d: d.update(lower_bound_s=d["simulated_s"] / 2, gap=None), "OPTIMAL needs a gap"),
        (lambda d: d.update(simulated_s=-1.0), "simulated_s"),
        (lambda d: d.update(termination="INFEASIBLE"), "cannot be there"),
        (lambda d: d["plan"]["configuration"]["stages"][0].update(layers=1), "contradicts stages"),
    ],
)
def test_impossible_results_do_not_even_load(
    answer: Document, change: Callable[[Document], object], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        SolveResult.from_json(json.dumps(changed(answer, change)))


def test_layers_lost_in_the_plan(problem: Instance, answer: Document) -> None:
    def lose(document: Document) -> None:
        stated = document["plan"]["configuration"]
        stated["stages"][-1]["layers"] -= 1
        del stated["layers_per_stage"]

    report = check(problem, changed(answer, lose))
    (claim,) = [one for one in report.failed if one.claim.startswith("plan: well formed")]
    assert "hold 5 layers, the model has 6" in claim.detail


def test_a_bound_that_some_plan_undercuts_is_refuted(problem: Instance, answer: Document) -> None:
    """The second best plan is reported as the best, its time as the bound of every configuration: everything
    fits together, only the enumeration of tiny configurations gives it away."""
    second = answer["plans"][1]

    def lie(document: Document) -> None:
        bound = second["simulated_s"]
        for key in (
            "simulated_s",
            "durations",
            "order",
            "critical_path",
            "breakdown",
            "throughput",
            "memory",
        ):
            document[key] = second[key]
        document.update(
            plan={"configuration": second["configuration"], "placement": second["placement"]},
            plans=[],
            lower_bound_s=bound,
            gap=0.0,
            trace=[],
            baseline=None,
            default_order_s=bound,
        )
        for record in document["configurations"]:
            if record["status"] == "refused":
                continue
            same = record["configuration"] == second["configuration"]
            record.update(lower_bound_s=bound, status="solved" if same else "bounded_out")
            record["best_s"] = max(record["best_s"], bound)

    report = check(problem, changed(answer, lie))
    failed = {one.claim: one.detail for one in report.failed}
    assert "has a plan of" in failed["lower_bound_s: no plan of any configuration is faster"]
    assert set(failed) <= {
        "lower_bound_s: no plan of any configuration is faster",
        "configurations: lower_bound_s of each",
        "default_order_s",
    }


def test_another_instance_is_not_judged_further(answer: Document) -> None:
    report = check(instance(), answer)
    assert [claim.claim for claim in report.claims] == ["instance_sha256"]
    assert not report.ok


def test_a_plan_out_of_memory(answer: Document, problem: Instance) -> None:
    """The instance itself says less memory, and the result names that instance."""
    data = problem.model_dump(mode="json")
    data["cluster"]["gpu_types"]["gpu"]["memory"] = 3.4 * 2**30
    small = Instance.model_validate(data)
    document = changed(answer, lambda d: d.update(instance_sha256=small.sha256()))
    failed = {one.claim: one.detail for one in check(small, document).failed}
    assert any("plan" in name for name in failed)
    assert "configurations: every legal one is listed" in failed


def test_plans_of_several_batches_are_ranked_per_sequence() -> None:
    """31 sequences go with one replica only; that plan takes longer in all and less a sequence."""
    several = instance(
        training={"global_batch_size": [8, 31]}, search={"micro_batch": 1, "tensor": 2, "pipeline": [1, 2]}
    )
    result = solve(several, solver="exhaustive", threads=1)
    first, second = result.plans
    assert (first.configuration.global_batch_size, second.configuration.global_batch_size) == (31, 8)
    assert first.simulated_s > second.simulated_s
    assert verify(several, result).failed == ()
    document = changed(json.loads(result.to_json()), lambda d: d["plans"].reverse())
    (fault,) = check(several, document).failed
    assert fault.claim.startswith("plans: best first")


def test_memory_of_every_stage_counts() -> None:
    """Unlike the split's own limits, this holds for what the stages really need."""
    wanted = configuration((3, 3), data=2, num_micro_batches=8)
    cells = np.array([[0, 0], [1, 1]])
    assert memory_faults(assess(CostModel.of(instance()), wanted, cells)) == []
    small = CostModel.of(instance({"cluster/gpu_types/gpu/memory": "4 GiB"}))
    assert [text[:7] for text in memory_faults(assess(small, wanted, cells))] == ["stage 0", "stage 1"]


def test_batches_are_compared_per_sequence() -> None:
    several = instance(
        training={"global_batch_size": [8, 12, 16]},
        search={"micro_batch": 2, "tensor": 2, "pipeline": [1, 2]},
    )
    result = solve(several, solver="exhaustive", threads=1)
    assert {plan.configuration.global_batch_size for plan in result.plans} == {16}
    report = verify(several, result)
    assert report.failed == ()
    document = json.loads(result.to_json())
    largest = max(r["best_s"] for r in document["configurations"] if r["status"] != "refused")
    assert largest > result.simulated_s


def test_infeasible_is_checked(problem: Instance) -> None:
    nowhere = instance({"cluster/gpu_types/gpu/memory": "2 GiB"})
    result = solve(nowhere, solver="exhaustive", threads=1)
    assert result.termination == "INFEASIBLE"
    assert verify(nowhere, result).ok
    document = json.loads(result.to_json())
    document["instance_sha256"] = problem.sha256()
    failed = [claim.claim for claim in check(problem, document).failed]
    assert "configurations: every legal one is listed" in failed


def test_rounding_is_no_fault() -> None:
    assert differences({"a": [1.0, 2.0]}, {"a": [1.0 + TOLERANCE / 2, 2.0]}) == []
    assert differences({"a": [1.0, 2.0]}, {"a": [1.0 + 3 * TOLERANCE, 2.0]}) == [
        f"a[0] says 1.0, recomputed {1.0 + 3 * TOLERANCE!r}"
    ]
    assert differences({"a": True}, {"a": 1.0}) != []
    assert differences([1], [1, 2]) == ["has 1 entries, recomputed 2"]


# ---------------------------------------------------------------- bounds
def test_grounds_of_bounds(problem: Instance) -> None:
    families = enumerate_space(CostModel.of(problem)).families
    trivial = recheck_bounds(families, [1e-6] * len(families))
    assert {one.ground for one in trivial} == {Ground.ARITHMETIC}
    refuted = recheck_bounds(families, [1e3] * len(families), proven_tasks=0)
    assert {one.ground for one in refuted} == {Ground.REFUTED}
    assert all(one.refuting_s is not None and 0 < one.refuting_s < 1 for one in refuted)
    nothing = recheck_bounds(families, [1e3] * len(families), proven_tasks=0, enumerated_plans=0)
    assert {one.ground for one in nothing} == {Ground.NONE}


def test_no_ground_carries_more_than_the_best_plan(problem: Instance, answer: Document) -> None:
    """Proofs alone: whatever they carry, no plan undercuts."""
    by_degrees = {
        json.dumps(
            {**record["configuration"], "stages": None, "layers_per_stage": None}, sort_keys=True
        ): record["best_s"]
        for record in answer["configurations"]
        if record["status"] != "refused"
    }
    families = enumerate_space(CostModel.of(problem)).families
    best = [
        by_degrees[
            json.dumps(
                {**tables.configuration.model_dump(mode="json"), "stages": None, "layers_per_stage": None},
                sort_keys=True,
            )
        ]
        for tables in families
    ]
    above = recheck_bounds(families, [value * 1.0001 for value in best], enumerated_plans=0)
    assert {one.ground for one in above} == {Ground.NONE}
    below = recheck_bounds(families, [value * 0.8 for value in best], enumerated_plans=0)
    assert Ground.DUALS in {one.ground for one in below}
    assert {
        one.ground for one in recheck_bounds(families, [NO_PLAN_S] * len(families), enumerated_plans=0)
    } == {Ground.NONE}


def test_the_public_name_can_be_called_whatever_was_imported_before() -> None:
    """Importing the package ``verify`` binds its name in the parent, whose public name is the function."""
    code = (
        "from pipette_milp import verify as first; import pipette_milp.verify.claims; "
        "from pipette_milp import verify as second; import pipette_milp; "
        "print(callable(first), callable(second), callable(pipette_milp.verify))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 3
