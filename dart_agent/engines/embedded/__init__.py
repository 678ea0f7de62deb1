"""The engine in this process: a Qwen-VL model on PyTorch with batching and exact log-probabilities.

`transformers_engine.TransformersEngine` is the face. The only room of `dart_agent` that needs torch.
"""
