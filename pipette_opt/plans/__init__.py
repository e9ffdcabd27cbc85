"""
A finished plan: what it holds, which links it uses, what moves between two plans, notes.

Import from the modules.
"""
