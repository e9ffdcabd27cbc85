"""
Transformer of one tensor-parallel rank, in torch, that allocates memory and computes nothing.

Every operation allocates the memory of the kernels behind Megatron-Core, and keeps the same tensors for the backward
pass. No number in a tensor is read, so a fused kernel is an empty output of the right size. The matrix product itself
adds weight gradients to the main gradient (Megatron's gradient accumulation fusion). So weights take no part in
autograd here; only the embeddings first make a gradient of their own. Communication inside the tensor-parallel group
appears as its buffers.

Activations are two-dimensional: tokens of one micro-batch, times width.
"""
