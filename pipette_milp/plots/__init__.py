"""Pictures of instances, plans and results. Needs matplotlib (extra ``plot``), imported on first use.

Every function draws on ``axes`` where one is given, else on a figure of its own, and returns the figure.
Figures are made without pyplot: nothing opens, nothing has to be closed.

Colours keep apart for colour-blind readers and by lightness in print; where colour alone would have to tell,
a number, a letter or a pattern says it too.
"""

from pipette_milp.plots.breakdown import breakdown
from pipette_milp.plots.configurations import configurations
from pipette_milp.plots.convergence import convergence
from pipette_milp.plots.links import links
from pipette_milp.plots.memory import memory
from pipette_milp.plots.placement import placement
from pipette_milp.plots.timeline import timeline

__all__ = ["breakdown", "configurations", "convergence", "links", "memory", "placement", "timeline"]
