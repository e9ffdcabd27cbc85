"""
Capture of a launch: a user's script runs, and the programs that it would start are recorded and not started.

bash itself reads the script. :mod:`captured` drives the run. :mod:`stand_ins` puts a folder first on ``PATH`` with a
program for every launcher. :mod:`stand_in` is the code of these programs. :mod:`guard` stops starts that bypass them.
"""
