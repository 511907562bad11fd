"""The simulator: the exact longest path of one training iteration.

``event_graph`` of a schedule, ``finish_times`` of many candidates at once, ``compose_iteration`` and
``simulated_s`` for the whole iteration.
"""

from pipette_milp.simulator.graph import EventGraph, event_graph
from pipette_milp.simulator.iteration import compose_iteration, simulated_s
from pipette_milp.simulator.longest_path import finish_times
from pipette_milp.simulator.path_counts import PathCounts, path_counts, path_counts_batch

__all__ = [
    "EventGraph",
    "PathCounts",
    "compose_iteration",
    "event_graph",
    "finish_times",
    "path_counts",
    "path_counts_batch",
    "simulated_s",
]
