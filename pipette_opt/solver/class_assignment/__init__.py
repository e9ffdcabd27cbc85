"""
Class assignment: a relaxation of the placement that merges similar hosts into classes, and splits classes on demand.

A link between classes costs the least of its members' links. So the placement model with classes in place of hosts is a
relaxation, in which a class may be in as many cells as it has members. Rows, columns, ring order and sums along paths
stay exact. With a few classes it is solved quickly. A solution below the objective ceiling shows which links would have
to be faster than most links of their classes. These classes are split, and the model is solved again.
"""
