"""What users have, read into specs: clusters, links, models, GPUs, shipped examples."""
