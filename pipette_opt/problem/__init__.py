"""
Placement problem in integers: its data, how it is built, cost of a placement, bound over the best links.

Import from the modules.
"""
