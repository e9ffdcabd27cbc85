"""
Training frameworks, both ways: each is a module of this folder.

A module has the table of the framework's settings (:class:`~pipette_opt.read.setting_table.Row`), reads a launch
(``read``) and writes a plan (``settings`` and ``TARGET``). What tells a launch is the framework's row in
``data/frameworks.toml``, whose ``reader`` names the module. An export format has its module's name, ``_`` for ``-``.
"""
