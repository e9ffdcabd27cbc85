"""
The same problem in integers: its data, how it is built, what a placement costs, the best links.

Import from the modules.
"""
