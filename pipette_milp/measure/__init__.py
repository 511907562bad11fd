"""On the machines themselves: links and layers measured, the traffic of a plan run for real.

What moves data needs torch (extra ``measure``) and lies in the modules ``session``, ``network``, ``compute``,
``replay``, ``rings``; everything around it (rounds of pairs, programs of ranks, comparisons) is plain Python.
"""
