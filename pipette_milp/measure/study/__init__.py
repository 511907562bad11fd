"""How well predictions hold when packets move: plans replayed on emulated clusters, one command.

``python -m pipette_milp.measure.study -o DIRECTORY`` (``make replay-study``).
"""
