"""The clock against measured runs: predictions, errors, calibration."""
