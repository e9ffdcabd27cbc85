"""Declarations of the options of a job: fields, types, help texts and names. Imports no room but ``base``."""
