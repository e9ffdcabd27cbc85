"""A job as people say it, read into an instance: files, launches, search spaces. Errors name options of commands."""
