"""Figures of the study of replays, and which plans it draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipette_milp.measure.study.clusters import (
    FASTEST_MBIT_PER_S,
    MBIT_BYTES,
    SHORTEST_TASK_S,
    SLOWEST_MBIT_PER_S,
    study_clusters,
    study_instance,
)
from pipette_milp.measure.study.plans import rings_share_node, shares_egress
from pipette_milp.measure.study.table import Outcome, figures, markdown, misses, plot, spearman


def outcome(predicted: float, measured: float, origin: str = "drawn", cluster: str = "pods") -> Outcome:
    return Outcome(
        cluster=cluster,
        number=0,
        origin=origin,
        placement="random",
        label="p2 t1 d4 b1 M8 1f1b exchange",
        predicted_s=predicted,
        measured_s=measured,
        spread=0.01,
        shares_egress=True,
        rings_share_node=False,
    )


def test_figures() -> None:
    found = figures(
        [
            outcome(1.0, 1.0, "optimiser"),
            outcome(1.2, 1.25, "its default order"),
            outcome(2.0, 2.2),
            outcome(3.0, 2.9),
        ]
    )
    assert found.mape == pytest.approx((0 + 0.04 + 0.2 / 2.2 + 0.1 / 2.9) / 4)
    assert found.worst == pytest.approx(0.2 / 2.2)
    assert found.spearman == 1.0
    assert found.pick_behind == 0.0
    assert found.speed_up == {"pods": 1.25}
    assert found.factor == 3.0
    assert misses(found, 0.05) == ["MAPE 4.13% > 4 %"]


def test_every_target_can_be_missed() -> None:
    found = figures([outcome(1.0, 2.0, "optimiser"), outcome(2.0, 1.0)])
    said = misses(found, 0.09)
    assert len(said) == 5
    assert "2.00" not in said[0]
    assert any("100.00% behind" in text for text in said)


def test_the_pick_is_judged_in_its_cluster_and_beyond_noise() -> None:
    found = figures(
        [outcome(1.0, 1.03, "optimiser", "a"), outcome(1.1, 1.0, cluster="a"), outcome(0.5, 0.5, cluster="b")]
    )
    assert found.pick_behind == pytest.approx(0.03)
    assert found.pick_behind_beyond_noise == pytest.approx(0.02)


def test_spearman_against_known_values() -> None:
    assert spearman(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == -1.0
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4])) == pytest.approx(0.8)
    # ties share their mean rank: ranks 1.5, 1.5, 3 against 1, 2, 3
    assert spearman(np.array([1.0, 1, 2]), np.array([1.0, 2, 3])) == pytest.approx(0.8660254)


def test_table_and_picture(tmp_path: Path) -> None:
    outcomes = [outcome(1.0, 1.0, "optimiser"), outcome(1.2, 1.25, "its default order")]
    text = markdown(outcomes)
    assert "| pods | p2 t1 d4 b1 M8 1f1b exchange | optimiser | 1.000 | 1.000 | +0.00% |" in text
    assert text.count("\n| all | 2 |") == 1
    plot(outcomes, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_what_shares_a_node() -> None:
    apart = np.array([[0, 1], [2, 3]])
    together = np.array([[0, 0], [1, 2]])
    assert not shares_egress(apart, 1)
    assert shares_egress(apart, 2)
    assert shares_egress(together, 1)
    assert not shares_egress(np.array([[0, 0], [0, 0]]), 2)
    assert not rings_share_node(apart)
    assert rings_share_node(np.array([[0, 1], [1, 2]]))
    assert not rings_share_node(np.array([[0, 0], [0, 1]]))


def test_clusters_are_those_of_their_seed_and_within_the_emulation() -> None:
    for cluster, alone in zip(study_clusters(3), (study_clusters(3, [n])[0] for n in NAMES), strict=True):
        rates = cluster.network.pair_bytes_per_s
        assert np.array_equal(rates, alone.network.pair_bytes_per_s)
        assert not np.array_equal(rates, study_clusters(4, [cluster.name])[0].network.pair_bytes_per_s)
        links = rates[~np.eye(8, dtype=bool)] / MBIT_BYTES
        assert links.min() >= SLOWEST_MBIT_PER_S
        assert links.max() <= FASTEST_MBIT_PER_S


NAMES = ["pods", "slow-node", "wild"]


def test_the_job_has_the_shortest_task_it_should() -> None:
    from pipette_milp.cost.build import CostModel
    from pipette_milp.partial_configuration import complete_configuration

    network = {
        "intra_node": {"bandwidth": 1e9, "latency": 1e-5},
        "inter_node": {"bandwidth": 1e7, "latency": 1e-4, "source": "measured"},
    }
    job = study_instance("test", network, [f"node-{n:03d}" for n in range(8)], 2)
    chosen = complete_configuration({"pipeline": 8, "tensor": 1, "micro_batch": 1}, job)
    tables = CostModel.of(job).tables(chosen)
    assert tables.forward_layer_s == pytest.approx(SHORTEST_TASK_S, rel=0.01)
