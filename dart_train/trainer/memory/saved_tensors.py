"""Bytes that layers keep for the backward pass, by the tensors that autograd saves. Pure; no torch.

Each formula adds up the tensors that PyTorch's hooks on saved tensors showed of a layer of transformers, named beside
it; a test holds them against the hooks, for every family and several widths. Left out is what has one number for each
head or token: sums of squares, logarithms of sums, indices.

Half precision means bfloat16 autocast with float32 weights: norms and the residual stream stay in float32, every linear
layer keeps a copy of its input in half precision. What a GPU's autocast computes in float32 counts as such, though a
CPU's does not (layer norms).
"""

from dart_train.trainer.memory.model_size import DeltaSize, ModelSize

CHUNK = 64
"""Tokens that the chunked form of the gated delta rule computes at once; `chunk_size` in transformers."""
BLOCKS = {"gated": ((44, 16), (28, 8)), "plain": ((36, 8), (22, 4)), "quick": ((36, 12), (22, 6))}
"""Bytes of a block of the tower, for each of its width and of its inner width: in float32, and in half precision.

All keep the inputs and outputs of two norms, queries, keys, values, and what attention gives; Qwen2.5-VL's RMS norms
keep the normalised values besides. Of the inner width "gated" (`Qwen2_5_VLMLP`) keeps the gate, its activation, the
other part and their product, "plain" (`Qwen3VLVisionMLP`) what goes into GELU and what comes out, and "quick"
(`VisionMlp` of Qwen2-VL) the sigmoid of QuickGELU too.
"""
_MERGERS = {"gated": (20, 12), "plain": (16, 10), "quick": (16, 10)}
"""Bytes of the tower's merger for each of its width: the norm's input and output, and those of GELU."""


def token_bytes(size: ModelSize, *, half: bool, adapter: bool = False) -> int:
    """Return what a token keeps of the text layer that keeps most, for the backward pass.

    Of a mixture also what goes into each expert that computes it, and what comes out.

    Args:
        size: of the model.
        half: whether it computes in half precision.
        adapter: whether an adapter is trained and the routed experts, which get none, are frozen.
    """
    return max(layer_bytes(size, half=half, adapter=adapter))


def all_layers_bytes(size: ModelSize, *, half: bool, adapter: bool = False) -> int:
    """Return what a token keeps of all text layers."""
    attending, recurrent = layer_bytes(size, half=half, adapter=adapter)
    return size.attending * attending + (size.layers - size.attending) * recurrent


def layer_bytes(size: ModelSize, *, half: bool, adapter: bool = False) -> tuple[int, int]:
    """Return what a token keeps of a layer that attends, and of a recurrent one: 0 where the model has none."""
    rest = _rest_bytes(size, half=half)
    if adapter and size.experts:
        # Frozen weights need no inputs for their gradient: those of `gate_up_proj` and of `down_proj`.
        inner = size.expert // (3 * size.hidden)
        rest -= (2 if half else 4) * size.routed * (size.hidden + inner)
    attending = _attention_bytes(size, half=half) + rest if size.attending else 0
    return attending, _delta_bytes(size.delta, size.hidden, half=half) + rest if size.delta else 0


def patch_bytes(size: ModelSize, *, half: bool) -> int:
    """Return what a patch keeps of one block of the tower for the backward pass."""
    width, inner = BLOCKS[size.tower_block][half]
    return width * size.tower_hidden + inner * size.tower_inner


def edge_bytes(size: ModelSize, *, half: bool) -> int:
    """Return what a patch keeps of the tower before and after its blocks: pixels, and what goes through mergers.

    A deeper merger (`deepstack_merger_list` of `Qwen3VLVisionModel`) keeps the output of its norm, and what goes into
    GELU and comes out; what goes into the norm is the input of the next block, which in half precision is kept as a
    copy in float32.
    """
    last = _MERGERS[size.tower_block][half]
    deeper = (size.levels - 1) * (10 if half else 12)
    return (2 if half else 4) * size.patch_inputs + (last + deeper) * size.tower_hidden


def _attention_bytes(size: ModelSize, *, half: bool) -> int:
    """Queries, keys and values as the kernel takes them, its result, that by segments, and what `o_proj` takes."""
    asking, asked = (8, 4) if half else (16, 8)
    if size.normed_heads:
        # `Qwen3VLTextRMSNorm` of queries and keys by head: its input in float32, and the normalised values.
        asking += 6 if half else 8
        asked += 6 if half else 8
    if size.gated:
        # `Qwen3_5Attention`: in float32 the norm's input is a view of what `q_proj` gives, gates included; its norm
        # multiplies in float32; the kernel's result and the gate's sigmoid are kept for their product.
        asking += 6 if half else 12
        asked += 2 if half else 0
    return asking * size.heads_width + asked * size.keys_width + (6 * size.hidden if half else 0)


def _delta_bytes(delta: DeltaSize, hidden: int, *, half: bool) -> int:
    """Return what a token keeps of Gated DeltaNet's mixing (`torch_chunk_gated_delta_rule`, without its kernels).

    Of queries and keys, which are repeated for each head of values: those that come, keys normalised, keys times beta,
    queries scaled, what the triangular system gives for keys, queries and keys decayed. Of values: those that come,
    what the system gives, what is new in each chunk; then the mixed values by segments, the gated norm's
    (`Qwen3_5RMSNormGated`) input, normalised and weighted values, gate and activation, and what `out_proj` takes.
    Of each pair of tokens in a chunk: decays, products of keys, of queries, and the triangular system. The memory is
    kept once for each chunk. Under autocast each product keeps copies of its factors in half precision.
    """
    keys, values = delta.heads * delta.key, delta.heads * delta.value
    pairs = delta.heads * CHUNK
    memory = delta.heads * delta.key * delta.value // CHUNK
    if half:
        return 8 * hidden + 4 * delta.channels + 38 * (keys + values) + 14 * pairs + 8 * memory
    return 8 * delta.channels + 32 * keys + 40 * values + 20 * pairs + 4 * memory


def _rest_bytes(size: ModelSize, *, half: bool) -> int:
    """Return what a token keeps of a text layer but for the mixing of tokens: both norms and the feed-forward part.

    An RMS norm keeps its input, the normalised values and, as the next layers' input, its result. A mixture keeps
    probabilities of all experts, each routed expert's input and output, and of a shared expert its output, which a
    gate multiplies. Its routed experts count in half precision, as those of a sharded model or of a frozen one are.
    """
    width, routed = size.hidden, size.routed * size.hidden
    if half:
        casts = 4
        if size.experts:
            casts = 10 if size.shared_expert else 2
        return (16 + casts) * width + 8 * size.inner + 4 * routed + 4 * size.experts
    shared = 4 * width if size.shared_expert else 0
    return 24 * width + 16 * size.inner + 8 * routed + shared + 4 * size.experts
