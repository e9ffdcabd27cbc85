"""
Worlds: draws of everything about a cluster and its software that a predicted time does not know.

``terms`` describes predictions by numbers, ``prior`` reads what public runs say of these numbers, and ``worlds`` draws
from the prior and moves the draws by measured runs.
"""
