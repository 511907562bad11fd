"""From nodes to GPUs: plans of a search that looks at nodes alone, and a search that looks at both.

A plan with the node of every cell but without GPUs has every duration inside a node at its best case.
`with_gpus` arranges its cells on the GPUs of their nodes, so that its time is one that can be attained: first
node by node what loses least by an estimate (`losses_s`), then one node after the other the arrangement with
which the whole plan simulates fastest. `gpu_search` is a local search over both levels: the moves of
`pipette_milp.solvers.moves`, and a move that regroups a node, judged by the simulated time with GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.gpu_level import GpuLevel
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.arrangements import (
    Arrangements,
    Cell,
    Structure,
    arrangements,
    cells_of_nodes,
    put,
    structure_of,
)
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.moves import DRAWS, bounds_of, mix_of, propose

TRIED = 24
"""Arrangements of a node that are simulated, those with the least estimated loss."""
SIMULATIONS = 400
"""Plans that `with_gpus` simulates at most to improve on the estimate: half a second for tens of nodes."""
REGROUPING = 0.25
"""Share of the moves of `gpu_search` that regroup a node and move no cell between nodes."""
WARMTH = 1e-3
"""Mean relative loss accepted at the start of `gpu_search`; it shrinks to nothing. As in the local search."""


def losses_s(
    tables: CostTables, level: GpuLevel, layers: IntArray, cells: list[Cell], found: Arrangements
) -> Array:
    """[A] seconds of an iteration that each arrangement of a node costs, roughly.

    Cells count with all micro-batches, hops with about two per round of the pipeline, rings and exchanges
    once; all of them added up, although only the slowest may count in the end.
    """
    structure = structure_of(tables, cells)
    micro_batches = tables.configuration.num_micro_batches
    stage_layers = layers.reshape(-1, tables.pipeline).sum(axis=0)
    per_layer = np.array(
        [t.forward_layer_s + t.backward_layer_s + t.weight_gradient_layer_s for t in level.tasks]
    )
    stages = [s for s, _ in cells]
    lost = micro_batches * (per_layer[found.classes] * stage_layers[stages]).sum(axis=1)
    rounds = 2.0 * max(1.0, micro_batches / tables.pipeline)
    lost += rounds * (tables.hop_bytes / found.hop_bytes_per_s).sum(axis=(1, 2))
    lost += (tables.embedding_bytes / found.exchange_bytes_per_s).sum(axis=1)
    for index, members in enumerate(structure.rings):
        s = stages[members[0]]
        sent = tables.sync.bytes_per_layer * stage_layers[s] + tables.sync.bytes_extra[s]
        lost += sent / found.ring_bytes_per_s[:, index]
    return np.asarray(lost)


class Arranger:
    """Arranges the cells of nodes for plans of one family."""

    def __init__(self, tables: CostTables) -> None:
        if tables.gpu_level is None:
            raise ValueError("the GPUs of every node are joined alike: there is nothing to arrange")
        self.tables = tables
        self.level = tables.gpu_level
        self._ordered: dict[tuple[object, ...], IntArray] = {}

    def options(self, node: int, layers: IntArray, cells: list[Cell]) -> IntArray:
        """[A, cells, t] arrangements of a node, least estimated loss first, at most `TRIED`."""
        structure: Structure = structure_of(self.tables, cells)
        stages = tuple(s for s, _ in cells)
        key = (int(self.level.wiring_of_node[node]), structure, stages, layers.tobytes())
        if key not in self._ordered:
            found = arrangements(self.tables, node, structure)
            lost = losses_s(self.tables, self.level, layers, cells, found)
            self._ordered[key] = found.gpus[np.argsort(lost, kind="stable")[:TRIED]]
        return self._ordered[key]

    def arranged(self, candidate: Candidate) -> Candidate:
        """With the GPUs that lose least by the estimate."""
        nodes = candidate.node_of_cell
        gpus = np.zeros((*nodes.shape, self.tables.tensor), dtype=np.int64)
        for node, cells in enumerate(cells_of_nodes(nodes, self.tables.num_nodes)):
            if cells:
                put(gpus, cells, self.options(node, candidate.layers, cells)[0])
        return replace(candidate, gpus_of_cell=gpus)


def with_gpus(
    evaluator: Evaluator, candidate: Candidate, *, simulations: int = SIMULATIONS
) -> tuple[float, Candidate]:
    """A plan's best arrangement found, and its simulated seconds; GPUs that were chosen already are kept.

    Args:
        simulations: plans to simulate beyond the first; 0 for the estimate alone.
    """
    if evaluator.tables.gpu_level is None or candidate.gpus_of_cell is not None:
        return evaluator.simulated_s(candidate), candidate
    arranger = Arranger(evaluator.tables)
    best = arranger.arranged(candidate)
    best_s = evaluator.simulated_s(best)
    on_nodes = cells_of_nodes(candidate.node_of_cell, evaluator.tables.num_nodes)
    floor_s = evaluator.simulated_s(candidate)  # every node at its best case
    improved = True
    while improved:
        improved = False
        for node, cells in enumerate(on_nodes):
            if not cells:
                continue
            for option in arranger.options(node, candidate.layers, cells)[1:]:
                if simulations <= 0 or best_s <= floor_s:
                    return best_s, best
                simulations -= 1
                trial = _regrouped(best, cells, option)
                trial_s = evaluator.simulated_s(trial)
                if trial_s < best_s * (1 - 1e-12):
                    best, best_s, improved = trial, trial_s, True
    return best_s, best


def _regrouped(candidate: Candidate, cells: list[Cell], ranks: IntArray) -> Candidate:
    if candidate.gpus_of_cell is None:
        raise ValueError("a plan without GPUs cannot be regrouped")
    gpus = candidate.gpus_of_cell.copy()
    put(gpus, cells, ranks)
    return replace(candidate, gpus_of_cell=gpus)


def gpu_search(
    evaluator: Evaluator,
    start: Candidate,
    rng: np.random.Generator,
    *,
    iterations: int,
    stop: Callable[[], bool] = lambda: False,
    patience: int | None = None,
) -> tuple[float, Candidate]:
    """Improve a plan over nodes and GPUs; returns its simulated time and itself, never worse than the start.

    Args:
        iterations: moves at most.
        stop: asked before every move.
        patience: give up after so many moves in a row without improvement.
    """
    tables = evaluator.tables
    arranger = Arranger(tables)
    best_s, best = with_gpus(evaluator, start)
    current_s, current = best_s, best
    bounds, mix = bounds_of(tables), mix_of(tables)
    nobody = np.zeros(0, dtype=np.int64)
    improved_at = 0
    for move in range(iterations):
        if stop() or (patience is not None and move - improved_at >= patience):
            break
        draws = rng.random(DRAWS)
        layers, nodes = current.layers.copy(), current.node_of_cell.copy()
        if rng.random() < REGROUPING or not mix.any():
            trial = _random_regrouping(arranger, current, rng)
        elif propose(bounds, draws, mix, nobody, layers, nodes):
            trial = _follow(arranger, current, layers, nodes)
        else:
            continue
        if trial is None:
            continue
        trial_s = evaluator.simulated_s(trial)
        allowed_s = rng.exponential() * WARMTH * best_s * (1 - move / iterations) ** 2
        if trial_s <= current_s + allowed_s:
            current_s, current = trial_s, trial
        if trial_s < best_s * (1 - 1e-12):
            best_s, best, improved_at = trial_s, trial, move
    return best_s, best


def _random_regrouping(
    arranger: Arranger, candidate: Candidate, rng: np.random.Generator
) -> Candidate | None:
    """Another arrangement of a random node; None where it has but one."""
    on_nodes = cells_of_nodes(candidate.node_of_cell, arranger.tables.num_nodes)
    node = int(rng.choice([n for n, cells in enumerate(on_nodes) if cells]))
    options = arranger.options(node, candidate.layers, on_nodes[node])
    if len(options) < 2:
        return None
    return _regrouped(candidate, on_nodes[node], options[int(rng.integers(len(options)))])


def _follow(arranger: Arranger, current: Candidate, layers: IntArray, nodes: IntArray) -> Candidate | None:
    """The plan after a move of cells or layers: nodes whose cells changed are arranged anew by the estimate;
    None where nothing changed."""
    if current.gpus_of_cell is None:
        raise ValueError("a plan without GPUs cannot be changed")
    moved = nodes != current.node_of_cell
    if not moved.any() and np.array_equal(layers, current.layers):
        return None
    gpus = current.gpus_of_cell.copy()
    touched = {int(n) for n in (*nodes[moved], *current.node_of_cell[moved])}
    on_nodes = cells_of_nodes(nodes, arranger.tables.num_nodes)
    for node in touched:
        if on_nodes[node]:
            put(gpus, on_nodes[node], arranger.options(node, layers, on_nodes[node])[0])
    return Candidate(layers, nodes, gpus)
