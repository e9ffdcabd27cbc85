"""Reading of a job (options, job file, launch of today) into an instance and a search space. Errors name options."""
