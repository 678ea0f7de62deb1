"""Engines that are vLLM servers: requests and weight updates. `vllm_engine.VLLMEngine` is the face."""
