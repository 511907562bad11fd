"""Fabric dumps in the form of ibnetdiscover, made up: leaves, spines, hosts and their cables."""

from __future__ import annotations


def dump(leaf_hosts: list[list[str]], spines: int, uplinks_per_leaf: int, rate: str = "4xNDR") -> str:
    """A two-level fabric; every leaf has ``uplinks_per_leaf`` cables spread over the spines.

    Args:
        leaf_hosts: [leaf] descriptions of the adapters on it, such as ``node-01 mlx5_0``.
    """
    leaf_guids = [f"a{leaf:015x}" for leaf in range(len(leaf_hosts))]
    spine_guids = [f"b{spine:015x}" for spine in range(spines)]
    up: list[list[str]] = [[] for _ in leaf_hosts]
    down: list[list[str]] = [[] for _ in range(spines)]
    for leaf in range(len(leaf_hosts)):
        for cable in range(uplinks_per_leaf):
            spine = cable % spines
            port, peer = len(leaf_hosts[leaf]) + 1 + cable, len(down[spine]) + 1
            up[leaf].append(_switch_port(port, spine_guids[spine], peer, f"spine-{spine:02d}", rate))
            down[spine].append(_switch_port(peer, leaf_guids[leaf], port, f"leaf-{leaf:02d}", rate))
    lines = ["#", "# Topology file: generated on Mon Mar  3 10:00:00 2025", "#"]
    adapter = 0
    for leaf, hosts in enumerate(leaf_hosts):
        lines += _switch(leaf_guids[leaf], f"leaf-{leaf:02d}")
        for port, host in enumerate(hosts, start=1):
            guid = f"c{adapter:015x}"
            adapter += 1
            lines.append(f'[{port}]\t"H-{guid}"[1]({guid}) \t\t# "{host}" lid {1000 + adapter} {rate}')
        lines += up[leaf]
    for spine in range(spines):
        lines += _switch(spine_guids[spine], f"spine-{spine:02d}")
        lines += down[spine]
    return "\n".join(lines) + "\n"


def _switch(guid: str, name: str) -> list[str]:
    return [
        "",
        "vendid=0x2c9",
        "devid=0xd2f2",
        f"sysimgguid=0x{guid}",
        f"switchguid=0x{guid}({guid})",
        f'Switch\t65 "S-{guid}"\t\t# "MF0;{name}:MQM9701/U1" enhanced port 0 lid 7 lmc 0',
    ]


def _switch_port(port: int, guid: str, peer: int, name: str, rate: str) -> str:
    return f'[{port}]\t"S-{guid}"[{peer}]\t\t# "MF0;{name}:MQM9701/U1" lid 7 {rate}'


def single_card_hosts(leaves: int, hosts_per_leaf: int) -> list[list[str]]:
    """One adapter a host: a group is a leaf switch."""
    return [
        [f"node-{leaf * hosts_per_leaf + i:03d} mlx5_0" for i in range(hosts_per_leaf)]
        for leaf in range(leaves)
    ]


def rail_hosts(pods: int, rails: int, hosts_per_pod: int) -> list[list[str]]:
    """Card i of every host of a pod on leaf i of the pod: a group is a pod."""
    return [
        [f"node-{pod * hosts_per_pod + i:03d} mlx5_{rail}" for i in range(hosts_per_pod)]
        for pod in range(pods)
        for rail in range(rails)
    ]
