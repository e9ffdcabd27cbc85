"""
Finished plans: their contents, the links they use, moves between two plans, notes.

Import from the modules.
"""
