"""Which commands of iproute2 build and shape an emulated network; nothing is run here.

Every node is a network namespace with one interface, all interfaces meet on a bridge in a namespace of its
own. A node shapes what it sends: one htb class for the whole node, below it one class per destination, told
apart by destination address (u32). What a node receives is shaped where the bridge sends it to the node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pipette_milp.arrays import Array
from pipette_milp.errors import InputError, Problem

FRAME_BYTES = 1514
"""Ethernet frame of a full segment, which htb counts."""
SEGMENT_BYTES = 1448
"""TCP payload in it: 1500 less 20 (IP), 20 (TCP) and 12 (time stamps)."""
GOODPUT = SEGMENT_BYTES / FRAME_BYTES
"""Payload per shaped byte of a large transfer."""
BURST_BYTES = 5000
"""Bucket of a class: about one packet of `GSO_BYTES`. A larger bucket gives that much to every message for
free."""
GSO_BYTES = 4344
"""Three segments. With the default of 64 kB a message of that size passes the bucket as one packet."""
QUEUE_PACKETS = 1000
"""Of each class; more than the send buffers of all connections hold, so nothing is dropped."""
QUANTUM_BYTES = 4500
"""What a class sends in its turn when several share the node: one packet of `GSO_BYTES` with its headers."""
SMALL_PACKET_BYTES = 256
"""Acknowledgements are smaller: they pass the data that waits and cost it nothing, as on networks whose
protocol runs in the card. Counted with the data they would take 2 % of it while both directions are busy."""
SMALL_PACKETS_BYTES_PER_S = 1.25e8
"""What small packets may take on top of the shaped rates; they never need a tenth of it."""
SEND_BUFFER_BYTES = 65536
"""Per connection: a send must not return long before its bytes have left."""
MOST_NODES = 250
"""Addresses of one subnet."""
MINIMUM_BYTES_PER_S = 1.25e5
"""1 Mbit/s: below it the smallest share of a class falls under what htb can express well."""


@dataclass(frozen=True)
class EmulatedNetwork:
    """Rates of an emulated cluster at the link, headers included."""

    pair_bytes_per_s: Array
    """[N, N] row = sender; the diagonal is unused."""
    egress_bytes_per_s: Array
    """[N] all that a node sends."""
    ingress_bytes_per_s: Array
    """[N] all that a node receives."""

    def __post_init__(self) -> None:
        pair = self.pair_bytes_per_s
        size = len(pair)
        problems = []
        if not 2 <= size <= MOST_NODES:
            problems.append(Problem("pair_bytes_per_s", f"{size} nodes: expected 2 to {MOST_NODES}"))
        shapes = {
            "pair_bytes_per_s": (size, size),
            "egress_bytes_per_s": (size,),
            "ingress_bytes_per_s": (size,),
        }
        for name, shape in shapes.items():
            values = getattr(self, name)
            if values.shape != shape:
                problems.append(Problem(name, f"shape {values.shape}: expected {shape}"))
            else:
                used = values[~np.eye(size, dtype=bool)] if values.ndim == 2 else values
                if not (np.isfinite(used).all() and (used >= MINIMUM_BYTES_PER_S).all()):
                    problems.append(
                        Problem(name, f"expected finite rates of at least {MINIMUM_BYTES_PER_S:g} bytes/s")
                    )
        if problems:
            raise InputError(problems)

    @classmethod
    def of(cls, pair_bytes_per_s: ArrayLike) -> EmulatedNetwork:
        """Nodes send as much as the fastest link of their row and receive as much as that of their column:
        the default rule of instances."""
        pair = np.array(pair_bytes_per_s, dtype=float)
        links = np.where(np.eye(len(pair), dtype=bool), 0.0, pair)
        return cls(pair, links.max(axis=1), links.max(axis=0))

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.pair_bytes_per_s)

    @property
    def goodput_bytes_per_s(self) -> Array:
        """[N, N] payload that a large transfer attains on each directed pair."""
        return GOODPUT * np.minimum(
            self.pair_bytes_per_s,
            np.minimum(self.egress_bytes_per_s[:, None], self.ingress_bytes_per_s[None, :]),
        )


def address(node: int) -> str:
    """Address of a node, inside the namespaces only."""
    return f"10.77.0.{node + 1}"


def hardware_address(node: int) -> str:
    """Locally administered; fixed, so that neighbours need not ask for it."""
    return f"02:00:00:00:00:{node + 1:02x}"


def switch_links(size: int, namespace_of_node: Iterable[str]) -> list[str]:
    """``ip`` commands in the switch's namespace: bridge and one pair of interfaces per node.

    Args:
        namespace_of_node: what ``ip link ... netns`` accepts, a path of /proc for namespaces without name.
    """
    commands = ["link add name bridge type bridge mcast_snooping 0"]
    for node, namespace in zip(range(size), namespace_of_node, strict=True):
        commands += [
            f"link add port{node} type veth peer name eth0 address {hardware_address(node)} netns {namespace}",
            f"link set port{node} gso_max_size {GSO_BYTES} master bridge up",
        ]
    return [*commands, "link set bridge up"]


def switch_shaping(network: EmulatedNetwork) -> list[str]:
    """``tc`` commands in the switch's namespace: what each node may receive."""
    commands = []
    for node in range(network.size):
        device, rate = f"port{node}", network.ingress_bytes_per_s[node]
        commands += _root(device, rate)
        commands += _leaf(device, 16, rate, rate)
        commands.append(
            f"filter add dev {device} parent 1: protocol ip prio 2 u32 match ip dst {address(node)}/32 "
            "flowid 1:10"
        )
    return commands


def node_links(network: EmulatedNetwork, node: int) -> list[str]:
    """``ip`` commands in a node's namespace: address, loopback, the neighbours' hardware addresses."""
    commands = [
        "link set lo up",
        f"link set eth0 gso_max_size {GSO_BYTES} up",
        f"address add {address(node)}/24 dev eth0",
    ]
    for other in range(network.size):
        if other != node:
            commands.append(
                f"neighbour replace {address(other)} lladdr {hardware_address(other)} dev eth0 nud permanent"
            )
    return commands


def node_shaping(network: EmulatedNetwork, node: int) -> list[str]:
    """``tc`` commands in a node's namespace: the node's class and one below it for each destination.

    A class may always send its own rate, whatever the node's class has left, so that rate is a share of the
    node's; what a pair may attain is its ceiling, borrowed from the node.
    """
    total = network.egress_bytes_per_s[node]
    commands = _root("eth0", total)
    share = total / network.size / 2
    for other in range(network.size):
        if other == node:
            continue
        pair = network.pair_bytes_per_s[node, other]
        commands += _leaf("eth0", 16 + other, min(share, pair), pair)
        commands.append(
            f"filter add dev eth0 parent 1: protocol ip prio 2 u32 match ip dst {address(other)}/32 "
            f"flowid 1:{16 + other:x}"
        )
    return commands


def settings() -> dict[str, str]:
    """Files below /proc/sys in every node's namespace.

    BBR, the default on many machines, shares a link unfairly; reno shares it evenly.
    """
    return {
        "net/ipv4/tcp_congestion_control": "reno",
        "net/ipv4/tcp_wmem": f"4096 16384 {SEND_BUFFER_BYTES}",
        "net/ipv4/tcp_slow_start_after_idle": "0",
        "net/ipv4/tcp_no_metrics_save": "1",
    }


def _root(device: str, bytes_per_s: float) -> list[str]:
    """The node's class, and class 2 beside it for small packets and whatever no filter knows."""
    rate, burst = _bits(bytes_per_s), f"burst {BURST_BYTES} cburst {BURST_BYTES}"
    # bytes 2 and 3 of the IP header are the packet's length
    length_mask = f"{0xFFFF & ~(SMALL_PACKET_BYTES - 1):#x}"
    return [
        f"qdisc add dev {device} root handle 1: htb default 2",
        f"class add dev {device} parent 1: classid 1:1 htb rate {rate} ceil {rate} {burst}",
        f"class add dev {device} parent 1: classid 1:2 htb rate {_bits(SMALL_PACKETS_BYTES_PER_S)} prio 0",
        f"filter add dev {device} parent 1: protocol ip prio 1 u32 match u16 0 {length_mask} at 2 flowid 1:2",
    ]


def _leaf(device: str, number: int, bytes_per_s: float, ceiling_bytes_per_s: float) -> list[str]:
    return [
        f"class add dev {device} parent 1:1 classid 1:{number:x} htb rate {_bits(bytes_per_s)} "
        f"ceil {_bits(ceiling_bytes_per_s)} burst {BURST_BYTES} cburst {BURST_BYTES} quantum {QUANTUM_BYTES} "
        "prio 1",
        f"qdisc add dev {device} parent 1:{number:x} handle {number + 0x100:x}: pfifo limit {QUEUE_PACKETS}",
    ]


def _bits(bytes_per_s: float) -> str:
    return f"{round(bytes_per_s * 8)}bit"
