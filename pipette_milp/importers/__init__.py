"""Files that people have -> facts: one source format per module, each with ``detect`` and ``parse``.

`registry` guesses the kind, `merge` joins facts about one cluster, `diagnose` finds slow nodes and links.
"""
