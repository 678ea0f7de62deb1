"""Engines that are vLLM servers: requests, weight updates, LoRA adapters. `vllm_engine.VLLMEngine` is the face."""
