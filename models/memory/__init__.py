"""The memory predictor's network: stages traced without a GPU, the dataset of their peaks, and the training."""
