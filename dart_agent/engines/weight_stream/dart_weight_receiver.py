"""A vLLM server's side of weights over TCP: `--worker-extension-cls dart_weight_receiver.Receiver`.

Importing it registers the backend "dart_tcp" in vLLM's own registry of weight transfer engines. It is vLLM's NCCL
engine in all but the wire: the same steering routes, the same reload layer by layer, on processors alone. vLLM 0.32.
"""

from typing import Any

from dart_weight_stream import TCPGroup, receive
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLWeightTransferEngine,
    NCCLWeightTransferInitInfo,
    NCCLWeightTransferUpdateInfo,
)


class TCPWeightTransferEngine(NCCLWeightTransferEngine):
    """Receives what `dart_weight_stream.Sender` sends with the backend "tcp"."""

    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        """Meet the sender. Every worker of the server is a rank of its own."""
        parallel = self.parallel_config
        worker = parallel.data_parallel_index * parallel.world_size + parallel.rank
        self.shutdown()  # what is left of a sender that is gone
        self.packed_buffer_size_bytes = init_info.packed_buffer_size_bytes
        self.model_update_group: Any = TCPGroup(
            init_info.master_address, init_info.master_port, worker + init_info.rank_offset, init_info.world_size
        )

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive and load; there is no accelerator to wait for."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        """Load tensors as they come."""
        if self.model_update_group is None:
            raise RuntimeError("weights are announced, but no sender was met: init_weight_transfer_engine first")
        receive(
            self.model_update_group,
            update_info.names,
            update_info.dtype_names,
            update_info.shapes,
            self.packed_buffer_size_bytes,
            self.model.load_weights,
        )


WeightTransferEngineFactory.register_engine("dart_tcp", TCPWeightTransferEngine)


class Receiver:
    """Nothing: what counts is that vLLM's workers import this module."""
