from __future__ import annotations

import numpy as np

from pipette_milp.importers import pair_list
from pipette_milp.importers.diagnose import Diagnosis, diagnose
from pipette_milp.importers.facts import PairwiseBandwidth
from tests.importer_samples import sample


def full(n: int, slow: dict[tuple[int, int], float], directed: bool = True, seed: int = 0) -> Diagnosis:
    rng = np.random.default_rng(seed)
    values = 20e9 * rng.uniform(0.93, 1.0, (n, n))
    for pair, share in slow.items():
        values[pair] *= share
    np.fill_diagonal(values, np.nan)
    names = tuple(f"n{i}" for i in range(n))
    found = diagnose(PairwiseBandwidth("f", names, values, "B/s", "node_pair", None, directed))
    assert found is not None
    return found


def test_noise_is_not_slow() -> None:
    assert full(8, {}).healthy


def test_a_slow_node_in_a_whole_matrix() -> None:
    slow = {pair: 0.5 for i in range(8) if i != 3 for pair in ((3, i), (i, 3))}
    found = full(8, slow)
    assert found.slow_nodes == (("n3", "both ways"),)
    assert found.slow_links == ()
    assert found.undecided == ()
    assert len(found.cleared) == 7


def test_a_node_that_is_slow_in_sending_only() -> None:
    assert full(8, {(3, i): 0.5 for i in range(8) if i != 3}).slow_nodes == (("n3", "sending"),)


def test_two_slow_nodes() -> None:
    slow = {pair: 0.5 for k in (1, 6) for i in range(8) if i != k for pair in ((k, i), (i, k))}
    assert {node for node, _ in full(8, slow).slow_nodes} == {"n1", "n6"}


def test_a_slow_link_between_good_nodes() -> None:
    found = full(8, {(2, 5): 0.4})
    assert found.slow_links == (("n2", "n5"),)
    assert found.slow_nodes == ()


def test_a_thin_level_of_the_fabric_is_not_a_list_of_cables() -> None:
    slow = {(a, b): 0.5 for a in range(8) for b in range(8) if a // 4 != b // 4}
    assert any("level of the fabric" in line for line in full(8, slow).lines())


def test_pairs_what_can_and_what_cannot_be_told() -> None:
    found = diagnose(pair_list.parse(sample("bandwidth/pairs.txt"), "f"))
    assert found is not None
    assert found.slow_nodes == (("r2-b", "both ways"),)
    (undecided,) = found.undecided
    assert {node for node, _ in undecided.suspects} == {"r2-c", "r2-d"}
    assert {pair[0] for pair in undecided.measure} == {"r2-c", "r2-d"}
    assert all(pair[1] in found.cleared for pair in undecided.measure)
    assert set(found.cleared) == {"r1-a", "r1-b", "r1-c", "r2-a"}
    assert any('"other rack" is not the cause' in line for line in found.remarks)


def test_one_slow_pair_with_a_good_partner_is_not_decided() -> None:
    found = diagnose(pair_list.parse("a b 50\nb c 51\nc d 25\n", "f"))
    assert found is not None
    assert found.slow_nodes == ()
    assert [node for node, _ in found.undecided[0].suspects] == ["d"]


def test_a_remark_that_explains_all_slow_pairs_is_named() -> None:
    found = diagnose(pair_list.parse("a b 50\nc d 25 # spine 3\ne f 24 # spine 3\n", "f"))
    assert found is not None
    assert any("look there first" in line for line in found.lines())


def test_without_a_good_node_nothing_is_suggested() -> None:
    found = diagnose(pair_list.parse("a b 50\nb a 50.1\nc d 25\n", "f"))
    assert found is not None
    assert found.undecided[0].measure == (("c", "a"), ("d", "a"))


def test_nothing_measured() -> None:
    assert diagnose(PairwiseBandwidth("f", ("a",), np.full((1, 1), np.nan), "B/s", None, None)) is None
