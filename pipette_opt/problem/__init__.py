"""
Integer placement problem: its data, its construction, the cost of a placement, and bounds over the best links.

Import from the modules.
"""
