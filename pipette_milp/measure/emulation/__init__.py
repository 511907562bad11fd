"""Clusters emulated on one Linux machine: a network namespace per node, every directed link shaped.

Nothing of it has a name on the machine: namespaces live as long as the processes inside them, which die with
the process that started them.
"""
