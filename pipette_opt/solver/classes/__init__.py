"""
Classes of like hosts, which relaxations put in the place of hosts.

What makes a placement slow is rarely which host is in which cell, but where slow hosts go and which rows a rack fills.
Hosts that are near twins are merged (:mod:`~pipette_opt.solver.classes.twins`), or told apart by rack and kind only
(:mod:`~pipette_opt.solver.classes.racks`); a link then costs the least of its two classes
(:mod:`~pipette_opt.solver.classes.costs`), so that what is proven about classes holds for hosts.
"""
