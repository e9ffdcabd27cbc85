"""Families of Hugging Face's ``config.json``: functions with ``@family`` in any module of this folder."""
