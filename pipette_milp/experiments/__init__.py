"""Comparisons of solvers and of published methods: runs that survive a kill, tables, pictures.

`pipette_milp.experiments.log` keeps finished runs, `pipette_milp.experiments.engine` does the missing ones,
here, in local processes or on a Dask cluster. `python -m pipette_milp.experiments DIRECTORY` makes the tables
of the README.
"""
