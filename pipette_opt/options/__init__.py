"""Declarations of what people say of a job: fields, types, help, names. Loads no other room than base."""
