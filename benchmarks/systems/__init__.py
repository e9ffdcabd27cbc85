"""Choices of other systems on equal jobs, timed by one simulator."""
