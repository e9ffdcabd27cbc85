"""Layer lists and sizes of layers with a state that do not fit are refused."""
