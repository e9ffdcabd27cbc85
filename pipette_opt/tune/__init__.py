"""Search for the fastest configuration by trials: next run, replay on measured runs, trials on a cluster."""
