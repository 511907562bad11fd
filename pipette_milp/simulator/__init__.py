"""The simulator: the exact longest path of one training iteration.

``event_graph`` of a schedule; ``finish_times`` of many candidates at once; ``compose_iteration`` and
``simulated_s`` for the whole iteration; ``path_counts`` for cuts; ``simulate`` for the explanation,
``execution_order`` and ``chrome_trace`` for files.
"""

from pipette_milp.simulator.accounts import PathStep
from pipette_milp.simulator.execution_order import execution_order
from pipette_milp.simulator.graph import EventGraph, event_graph
from pipette_milp.simulator.iteration import compose_iteration, simulated_s
from pipette_milp.simulator.longest_path import finish_times, lane_finish_times
from pipette_milp.simulator.path_counts import PathCounts, path_counts, path_counts_batch
from pipette_milp.simulator.timeline import Timeline, simulate
from pipette_milp.simulator.trace import chrome_trace

__all__ = [
    "EventGraph",
    "PathCounts",
    "PathStep",
    "Timeline",
    "chrome_trace",
    "compose_iteration",
    "event_graph",
    "execution_order",
    "finish_times",
    "lane_finish_times",
    "path_counts",
    "path_counts_batch",
    "simulate",
    "simulated_s",
]
