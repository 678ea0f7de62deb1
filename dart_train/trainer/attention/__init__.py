"""Which tokens of a micro-batch attend to which, and kernels for it: sdpa, FlashAttention 2 and 3, FlexAttention."""
