"""
The transformer of one tensor-parallel rank, in torch.

Every operation allocates what the kernels behind Megatron-Core allocate, keeps for the backward pass what they
keep, and computes nothing: the numbers in the tensors are never looked at, so a fused kernel is an empty output of
the right size. Weight gradients are accumulated into the main gradient by the matrix product itself (Megatron's
gradient accumulation fusion), so weights take no part in autograd here; only the embeddings make a gradient of
their own first. Communication inside the tensor-parallel group shows as the buffers it needs.

Activations are two-dimensional: tokens of one micro-batch, times width.
"""
