"""What the prediction of memory is made from: traced stages, the allocator, the network's training; imports torch."""
