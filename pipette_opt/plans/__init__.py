"""
Finished plans: their contents, the links they use, moves between two plans, notes.

Other code imports from the modules, not from this package.
"""
