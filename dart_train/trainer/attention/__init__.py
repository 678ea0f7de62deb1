"""Who sees whom in a micro-batch, and the kernels that compute it: sdpa, FlashAttention 2 and 3, FlexAttention."""
