"""Plan files, tables for people, and the page of a plan."""
