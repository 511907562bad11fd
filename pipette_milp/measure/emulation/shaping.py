"""Which commands of iproute2 build and shape an emulated network; nothing is run here.

Every node is a network namespace with one interface, all interfaces meet on a bridge in a namespace of its
own. A node shapes what it sends: one htb class for the whole node, below it one class per destination, told
apart by destination address (u32), below that one per rank of the node. What a node receives is shaped where
the bridge sends it to the node.
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
LOOPBACK_GSO_BYTES = 16384
"""Inside a node: several packets in a send buffer."""
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
MOST_NODES = 200
"""Addresses of one subnet, classes below `LEAF_STEP`."""
MOST_RANKS_PER_NODE = 16
FIRST_CLASS, LEAF_STEP = 16, 256
"""Numbering of htb classes: pairs from the first, ranks of a pair in steps."""
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


def type_of_service(local: int) -> int:
    """IP type of service that marks the connections of a rank of a node, so that ranks share links evenly:
    left to TCP, one of two equal flows would lead, and they would take turns instead of sharing."""
    return 4 * (local + 1)


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
        peer = f"peer name eth0 address {hardware_address(node)} netns {namespace}"
        commands += [
            f"link add port{node} type veth {peer}",
            f"link set port{node} gso_max_size {GSO_BYTES} master bridge up",
        ]
    return [*commands, "link set bridge up"]


def switch_shaping(network: EmulatedNetwork, ranks_per_node: int) -> list[str]:
    """``tc`` commands in the switch's namespace: what each node may receive, shared evenly by senders."""
    commands = []
    for node in range(network.size):
        device, total = f"port{node}", network.ingress_bytes_per_s[node]
        commands += _root(device, total)
        for other in range(network.size):
            if other != node:
                selects = f"match ip src {address(other)}/32"
                commands += _pair(device, other, total, total, network.size, ranks_per_node, selects)
    return commands


def node_links(network: EmulatedNetwork, node: int) -> list[str]:
    """``ip`` commands in a node's namespace: address, loopback, the neighbours' hardware addresses."""
    commands = [
        # one of its usual 64 kB segments fills the send buffer and waits 40 ms for a delayed acknowledgement
        f"link set lo mtu 1500 gso_max_size {LOOPBACK_GSO_BYTES} up",
        f"link set eth0 gso_max_size {GSO_BYTES} up",
        f"address add {address(node)}/24 dev eth0",
    ]
    for other in range(network.size):
        if other != node:
            commands.append(
                f"neighbour replace {address(other)} lladdr {hardware_address(other)} dev eth0 nud permanent"
            )
    return commands


def node_shaping(network: EmulatedNetwork, node: int, ranks_per_node: int) -> list[str]:
    """``tc`` commands in a node's namespace: the node's class, below it one for each destination, below that
    one for each rank of the node."""
    total = network.egress_bytes_per_s[node]
    commands = _root("eth0", total)
    for other in range(network.size):
        if other != node:
            pair = network.pair_bytes_per_s[node, other]
            selects = f"match ip dst {address(other)}/32"
            commands += _pair("eth0", other, total, pair, network.size, ranks_per_node, selects)
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


def _pair(
    device: str, other: int, total: float, pair: float, size: int, ranks_per_node: int, selects: str
) -> list[str]:
    """Class of one other node and one below it for each sending rank, told apart by type of service.

    A class may always send its own rate, whatever the class above has left, so that rate is a small share;
    what a pair may attain is its ceiling, borrowed from the node. Ranks take turns packet by packet, as the
    flows of a concurrency group are taken to.
    """
    share = min(total / size / 2, pair)
    ceiling, burst = _bits(pair), f"burst {BURST_BYTES} cburst {BURST_BYTES} quantum {QUANTUM_BYTES}"
    inner = FIRST_CLASS + other
    above = f"class add dev {device} parent 1:1 classid 1:{inner:x}"
    commands = [f"{above} htb rate {_bits(share)} ceil {ceiling} {burst}"]
    for local in range(ranks_per_node):
        leaf = LEAF_STEP * (local + 1) + inner
        commands += [
            f"class add dev {device} parent 1:{inner:x} classid 1:{leaf:x} htb "
            f"rate {_bits(share / ranks_per_node)} ceil {ceiling} {burst} prio 1",
            f"qdisc add dev {device} parent 1:{leaf:x} handle {leaf:x}: pfifo limit {QUEUE_PACKETS}",
            f"filter add dev {device} parent 1: protocol ip prio 2 u32 {selects} "
            f"match ip dsfield {type_of_service(local):#x} 0xfc flowid 1:{leaf:x}",
        ]
    return commands


def _bits(bytes_per_s: float) -> str:
    return f"{round(bytes_per_s * 8)}bit"
