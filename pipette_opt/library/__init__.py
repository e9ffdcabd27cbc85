"""The product as functions: jobs are read, plans made, read back and shown. The command line is its face."""
