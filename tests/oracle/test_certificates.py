"""Proofs against enumeration: none is accepted above the best plan, whatever its numbers; changed ones fail.

The search for contents and the reduced costs are compared with those of the solver, which come from other
code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from pipette_milp.arrays import Array
from pipette_milp.certificates import Certificate, Ground, certify, recheck_bounds
from pipette_milp.certificates.check import (
    ContentBound,
    UnprovenError,
    check_proof,
    contents_of_groups,
    reduced_costs,
    split_prices,
)
from pipette_milp.certificates.content_search import SplitPrices
from pipette_milp.certificates.frame import Frame
from pipette_milp.certificates.grounds import reached_by_arithmetic
from pipette_milp.certificates.produce import prove
from pipette_milp.certificates.proof import Proof
from pipette_milp.cost.build import CostModel
from pipette_milp.cost.tables import CostTables
from pipette_milp.schema.instance import load_instance
from pipette_milp.schema.plan import Configuration, split_stages
from pipette_milp.simulator import PathCounts
from pipette_milp.solvers import solve
from pipette_milp.solvers.contents import Contents, node_contents
from pipette_milp.solvers.evaluation import Evaluator
from pipette_milp.solvers.family_bound import bound_family
from pipette_milp.solvers.groups import find_groups, one_group
from pipette_milp.solvers.interval_cuts import interval_cuts
from pipette_milp.solvers.layer_branches import tightened_layers
from pipette_milp.solvers.patterns import Prices, useful_contents
from pipette_milp.solvers.relaxed import tail_floor_s
from pipette_milp.solvers.split_model import SplitModel
from pipette_milp.verify import verify
from tests.conftest import INSTANCES
from tests.oracle.tiny_tables import exhaustive
from tests.oracle.varied_tables import varied_tables

LIMIT_S = 60.0
SEEDS = range(16)
SLOW_SEEDS = range(16, 1500)
BELOW = (0.9999, 0.999, 0.99, 0.97, 0.9, 0.8)
"""Targets, in optima."""
ABOVE = (1.0 + 1e-6, 1.001, 1.1)


def tables_of(seed: int) -> CostTables:
    return varied_tables(np.random.default_rng(seed))


def check_seed(seed: int) -> int:
    """No proof above the optimum, every proof written below it is accepted; how many there were."""
    tables = tables_of(seed)
    best = exhaustive(tables)
    if best is None:
        return 0
    for factor in ABOVE:
        target_s = factor * best.simulated_s
        assert not reached_by_arithmetic(tables, target_s)
        assert prove(tables, target_s, time_limit_s=LIMIT_S) is None
    written = 0
    for factor in BELOW:
        target_s = factor * best.simulated_s
        proof = prove(tables, target_s, time_limit_s=LIMIT_S)
        if proof is None:
            continue
        written += 1
        check_proof(tables, target_s, Proof.model_validate_json(proof.model_dump_json()))
        if proof.cases:
            with pytest.raises(UnprovenError):
                check_proof(tables, best.simulated_s * ABOVE[0], proof)
    return written


@pytest.mark.parametrize("first", range(0, len(SEEDS), 8))
def test_proofs_are_below_the_optimum(first: int) -> None:
    assert sum(check_seed(seed) for seed in SEEDS[first : first + 8]) > 5


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(SLOW_SEEDS), 40))
def test_many_proofs_are_below_the_optimum(first: int) -> None:
    for seed in SLOW_SEEDS[first : first + 40]:
        check_seed(seed)


def frame_and_prices(seed: int, factor: float) -> tuple[Frame, Any, SplitPrices, Prices] | None:
    """The split model of an instance solved, its prices as the checker and as the solver see them."""
    tables = tables_of(seed)
    best = exhaustive(tables)
    if best is None:
        return None
    frame = Frame.of(tables, factor * best.simulated_s)
    kept = tightened_layers(frame.tables, frame.target)
    if kept is None:
        return None
    model = frame.split(*kept)
    for cut in interval_cuts(frame.tables):
        rows = (cut.forward, cut.backward, cut.weight_gradient, cut.hop_forward, cut.hop_backward)
        model.add_cut(PathCounts(*(np.array(row, dtype=np.int64) for row in rows)), cut.end_stage)
    solved = model.relax(time_limit_s=LIMIT_S)
    if solved.row_duals is None:
        return None
    prices = split_prices(frame, model, solved.row_duals, solved.row_duals, [])
    known = Prices.of(model, solved, model.low, model.high)
    return frame, model, prices, known


def room_after(model: SplitModel, prices: SplitPrices, target_s: float) -> Array:
    """[p] what the ends of stages and the start of the step leave to a stage's ring."""
    tables = model.tables
    room_s = np.full(tables.pipeline, np.inf)
    for s in range(tables.pipeline):
        sync = model.exposed_share(tables.sync, s) * model.proportion(tables.sync)
        if sync > 0:
            room_s[s] = (target_s - tail_floor_s(tables) - prices.finish_s[s]) / sync
        gather = model.proportion(tables.gather)
        if tables.gather_exposed and gather > 0:
            step_s = tables.optimizer_layer_s * model.low_of_stage[s] + tables.optimizer_extra_s[s]
            left_s = target_s - prices.start_s - step_s - tables.fixed_s
            room_s[s] = min(room_s[s], left_s / gather)
    return room_s


def test_the_search_for_contents_finds_what_the_solvers_filter_keeps() -> None:
    compared = kept_some = dropped_some = 0
    for seed in range(40):
        found = frame_and_prices(seed, 1.001 if seed % 2 else 1.1)
        if found is None:
            continue
        frame, model, prices, known = found
        # the same prices for both; the search looks at ends, the filter at the room they leave
        same = replace(known, bound_s=prices.bound_s, room_s=room_after(model, prices, frame.target))
        for groups in (one_group(frame.tables), find_groups(frame.tables)):
            listed = {group.slots: node_contents(frame.tables, group.slots) for group in groups}
            (masks,) = useful_contents(model, groups, listed, [same], frame.target)
            possible = contents_of_groups(frame, model, prices, groups, [])
            for group, mask, held in zip(groups, masks, possible, strict=True):
                wanted = {tuple(row) for row in listed[group.slots].held[mask].tolist()}
                assert {tuple(row) for row in held.tolist()} == wanted, seed
                compared += 1
                kept_some += len(wanted) > 1
                dropped_some += not mask.all()
    assert compared > 40
    assert kept_some > 20
    assert dropped_some > 5


def test_reduced_costs_agree_with_the_tables_of_the_solver() -> None:
    rng = np.random.default_rng(0)
    compared = 0
    for seed in range(40):
        tables = tables_of(seed)
        frame = Frame.of(tables, 1e9)
        kept = tightened_layers(frame.tables, frame.target)
        if kept is None:
            continue
        groups = find_groups(frame.tables)
        held = [node_contents(frame.tables, group.slots).held for group in groups]
        model = frame.patterns(*kept, groups, held)
        model.repeat_pairs([(s, r) for s in range(tables.pipeline) for r in range(tables.pipeline)])
        duals = rng.normal(size=model.num_rows)
        listed = [Contents(one, tables.data, group.slots) for one, group in zip(held, groups, strict=True)]
        for g, looked_up in enumerate(model.reduced_costs(duals, listed)):
            computed = reduced_costs(model, duals, g, held[g])
            assert computed == pytest.approx(looked_up, rel=1e-9, abs=1e-9)
            compared += len(computed)
    assert compared > 300


@pytest.mark.parametrize("seed", range(30))
def test_no_duals_prove_more_than_the_optimum(seed: int) -> None:
    """Duals of the optimum, disturbed at random: the target is above the best plan, so none may reach it."""
    rng = np.random.default_rng(seed)
    found = frame_and_prices(seed, 1.0 + 1e-6)
    if found is None:
        return
    frame, _, prices, _ = found
    kept = tightened_layers(frame.tables, frame.target)
    assert kept is not None
    groups = find_groups(frame.tables)
    model = frame.split(*kept)
    possible = contents_of_groups(frame, model, prices, groups, [])
    assert all(len(held) for held in possible)
    patterns = frame.patterns(*kept, groups, possible)
    for cut in interval_cuts(frame.tables):
        rows = (cut.forward, cut.backward, cut.weight_gradient, cut.hop_forward, cut.hop_backward)
        patterns.add_cut(PathCounts(*(np.array(row, dtype=np.int64) for row in rows)), cut.end_stage)
    patterns.repeat_pairs([(s, s) for s in range(frame.tables.pipeline)])
    solved = patterns.relax(time_limit_s=LIMIT_S)
    assert solved.row_duals is not None
    for spread in (0.0, 1e-3, 0.1, 1.0):
        for _ in range(5):
            duals = solved.row_duals * (1 + spread * rng.normal(size=len(solved.row_duals)))
            duals = duals + 0.1 * spread * rng.normal(size=len(duals)) * (rng.random(len(duals)) < 0.1)
            assert ContentBound.of(frame, patterns, duals, possible).value <= frame.target


# changed proofs


@cache
def node_proof() -> tuple[CostTables, float, Proof]:
    """A proof of a configuration on 16 nodes of 8 GPUs with cases, some of them with a step."""
    configuration = Configuration(
        pipeline=4,
        tensor=2,
        data=16,
        micro_batch=1,
        num_micro_batches=8,
        stages=split_stages((8, 8, 8, 8)),
        sequence_parallel=True,
        data_sharding="optimizer",
    )
    tables = CostModel.of(load_instance(INSTANCES / "gpt-8.1b-16x8-a100-flat.json")).tables(configuration)
    by_splits_s = bound_family(Evaluator(tables), [], 1e9, time_limit_s=LIMIT_S).bound_s
    target_s = 1.003 * by_splits_s
    proof = prove(tables, target_s, time_limit_s=LIMIT_S)
    assert proof is not None
    return tables, target_s, proof


def first_case(document: dict[str, Any]) -> dict[str, Any]:
    return next(case for case in document["cases"] if case is not None)


def step_of(document: dict[str, Any]) -> dict[str, Any]:
    return next(case["steps"][-1] for case in document["cases"] if case is not None and case["steps"])


def scaled(duals: dict[str, Any], factor: float) -> None:
    for kind in ("rows", "cuts"):
        duals[kind] = [[index, factor * value] for index, value in duals[kind]]


CHANGES: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("duals halved", lambda d: scaled(first_case(d)["duals"], 0.5), "of the target"),
    ("one dual", lambda d: first_case(d)["duals"]["rows"][0].__setitem__(1, 5.0), "of the target"),
    ("duals of the other sign", lambda d: scaled(first_case(d)["duals"], -1.0), "of the target"),
    ("no paths used", lambda d: first_case(d)["duals"].update(cuts=[]), "of the target"),
    ("no steps", lambda d: [c.update(steps=[]) for c in d["cases"] if c], "of the target"),
    ("step halved", lambda d: scaled(step_of(d)["duals"], 0.5), "of the target"),
    ("step without rows", lambda d: step_of(d)["duals"].update(rows=[]), "of the target"),
    (
        "a row that is not there",
        lambda d: first_case(d)["duals"]["rows"].append([9999, 1.0]),
        "no row",
    ),
    (
        "a path that is not there",
        lambda d: first_case(d)["duals"]["cuts"].append([99, 1.0]),
        "no path",
    ),
    (
        "a pair that is not there",
        lambda d: step_of(d)["duals"].update(pairs=[[99, 0, [1.0]]]),
        "have 0 rows",
    ),
    ("a path of another pipeline", lambda d: d["paths"][0]["layers"].append(1.0), "paths[0]"),
    ("a path to nowhere", lambda d: d["paths"][0].update(end=99), "paths[0]"),
    (
        "a negative duration",
        lambda d: d["paths"][0].update(layers=[-1.0] * len(d["paths"][0]["layers"])),
        "negative",
    ),
    ("no cases", lambda d: d.update(cases=[], least_layers=[]), "case 0 is missing"),
]


@pytest.mark.parametrize(("change", "says"), [one[1:] for one in CHANGES], ids=[one[0] for one in CHANGES])
def test_a_changed_proof_is_rejected(change: Callable[[dict[str, Any]], object], says: str) -> None:
    tables, target_s, proof = node_proof()
    check_proof(tables, target_s, proof)
    document = proof.model_dump(mode="json")
    change(document)
    with pytest.raises(UnprovenError, match=says.replace("[", r"\[")):
        check_proof(tables, target_s, Proof.model_validate(document))


def test_a_proof_given_is_a_ground_and_a_wrong_one_a_fault() -> None:
    tables, target_s, proof = node_proof()
    above_s = 2.0 * target_s
    for target, proofs, ground in (
        (target_s, {0: proof}, Ground.DUALS),
        (target_s, {}, Ground.NONE),
        (above_s, {0: proof}, Ground.UNPROVEN),
    ):
        (found,) = recheck_bounds([tables], [target], proofs, proven_tasks=0, enumerated_plans=0)
        assert (found.ground, bool(found.fault)) == (ground, ground is Ground.UNPROVEN)
    (found,) = recheck_bounds([tables], [target_s], enumerated_plans=0)
    assert found.ground is Ground.DUALS


@pytest.mark.slow
def test_the_bound_of_16_nodes_needs_no_solver_s_word() -> None:
    instance = load_instance(INSTANCES / "gpt-8.1b-16x8-a100-flat.json")
    result = solve(instance, threads=1, gap=0.02, time_limit_s=300.0)
    certificate = Certificate.from_json(certify(instance, result).to_json())
    report = verify(instance, result, certificate)
    assert report.failed == ()
    counts = next(one.counts for one in report.claims if one.claim.startswith("lower_bound_s: no plan"))
    assert set(counts) == {"closed form", "dual values"}
    document = json.loads(certificate.to_json())
    changed = next(proof for proof in document["proofs"] if proof["cases"])
    scaled(first_case(changed)["duals"], 0.5)
    (failed,) = verify(instance, result, Certificate.model_validate(document)).failed
    assert "its proof fails" in failed.detail
    other = certificate.model_copy(update={"instance_sha256": "0" * 64})
    assert "names 000" in verify(instance, result, other).failed[0].detail
    twice = certificate.model_copy(update={"proofs": certificate.proofs + certificate.proofs[:1]})
    assert "2 proofs of one configuration" in verify(instance, result, twice).failed[0].detail


def test_cases_must_cover_every_split() -> None:
    tables, target_s, proof = node_proof()
    for least_layers in ([99] * len(proof.least_layers), [*proof.least_layers, 1]):
        document = proof.model_dump(mode="json")
        document["least_layers"] = least_layers
        with pytest.raises(UnprovenError, match=r"leave out|entries"):
            check_proof(tables, target_s, Proof.model_validate(document))
    document = proof.model_dump(mode="json")
    document["cases"] = [None] * len(document["cases"])
    with pytest.raises(UnprovenError, match="is missing"):
        check_proof(tables, target_s, Proof.model_validate(document))
