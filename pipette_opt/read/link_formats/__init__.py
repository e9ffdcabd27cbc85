"""
Formats of files with measured links: each is a function of a module of this folder, with ``@link_format``.

Any module of the folder is found.
"""
