"""
Capture of a launch: the user's script runs, but launchers and training programs are recorded instead of started.

bash itself reads the script. :mod:`captured` controls the run. :mod:`stand_ins` puts a folder first on ``PATH`` with a
stand-in program for every launcher. :mod:`stand_in` is the code of these programs. :mod:`guard` stops programs that
bypass them.
"""
