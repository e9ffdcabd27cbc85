"""
Class assignment: a relaxation of the placement that merges hosts into classes, and splits classes where it matters.

Links between classes cost the least of their members' links. So the placement model with classes as hosts, each in as
many cells as it has members, is a relaxation. Rows, columns, ring order and sums along paths stay exact. With a few
classes it is solved quickly. A solution below the ceiling shows which links would have to be better than most of their
classes' links; these classes are split, and the model is solved again.
"""
