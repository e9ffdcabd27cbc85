"""Network of the memory predictor: traces of stages without a GPU, the dataset of their peaks, and the training."""
