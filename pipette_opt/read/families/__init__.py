"""
Families of Hugging Face's ``config.json``: each is a function of a module of this folder, with ``@family``.

Any module of the folder is found.
"""
