"""A stream of weights to vLLM servers: the modules that run in Python environments other than ours.

The modules import nothing of this package: `dart_weight_stream.py` is started as a script by any Python with torch
and safetensors, and `dart_weight_receiver.py` is found by vLLM's own processes, which get this directory as their
PYTHONPATH, as is `dart_token_guard.py`, which asks for the run's token. What steers the first two is
`dart_agent.engines.vllm.weight_loading`.
"""

from pathlib import Path

DIRECTORY = Path(__file__).parent
SENDER = DIRECTORY / "dart_weight_stream.py"
RECEIVER = "dart_weight_receiver.Receiver"
GUARD = "dart_token_guard.Guard"
TCP_BACKEND = "dart_tcp"
"""The name under which vLLM knows our way to receive weights; `dart_weight_receiver` registers it."""
