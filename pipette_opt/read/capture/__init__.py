"""
Capture of a launch: a user's own script runs, and what it would have started is recorded in place of being started.

bash itself does the reading. :mod:`captured` is the story; :mod:`stand_ins` puts a folder first on ``PATH`` with a
program for every launcher, :mod:`stand_in` is what these do, and :mod:`guard` stops what would go past them.
"""
