"""Weights into one replica, and proof that it serves them.

Invariant: `Replica.verified` is set only after the replica itself named the version and, where the weights have a
fingerprint, answered with their log-probabilities.
"""

from __future__ import annotations

import asyncio

from dart_agent.engines.base.engine import EngineError, EngineMismatch
from dart_train.core.fingerprint import check_fingerprint
from dart_train.core.train_errors import CheckpointError
from dart_train.rollout.fleet.replica import Replica, Weights
from dart_train.rollout.settings.rollout_config import EngineConfig


async def load_weights(replica: Replica, weights: Weights, config: EngineConfig) -> None:
    """Have a replica load weights, and find out whether it did.

    One that serves this version already is only compared with it: another service was faster.

    Raises:
        EngineError: it did not; it may hold a mixture of old and new ones.
    """
    if replica.engine is None:
        raise EngineError(f"{replica.name} is {replica.state}")
    replica.loading = weights.version
    try:
        async with asyncio.timeout(config.start_timeout_s):
            if replica.tainted or (await replica.engine.info()).version != weights.version:
                await replica.engine.update_weights(weights.path, weights.version)
        info = await replica.look(config.request_timeout_s)
        if info.version != weights.version:
            raise EngineMismatch(f"it says version {info.version} after an update to {weights.version}")
        await check_weights(replica, weights, config)
        replica.verified, replica.tainted = weights.version, False
    except TimeoutError:
        raise EngineError(f"{replica.name} did not load {weights.path} in time") from None
    finally:
        replica.loading = None


async def check_weights(replica: Replica, weights: Weights, config: EngineConfig) -> bool:
    """Compare a replica's answers with those of the published weights, where these have a fingerprint.

    Returns:
        Whether they have one, and it is to be compared.

    Raises:
        EngineMismatch: it serves other weights.
        EngineError: it did not answer, or the fingerprint cannot be read.
    """
    if config.fingerprint_tolerance is None or not weights.path or replica.engine is None:
        return False
    try:
        async with asyncio.timeout(config.request_timeout_s):
            off = await check_fingerprint(replica.engine, weights.path, config.fingerprint_tolerance)
    except CheckpointError as error:
        raise EngineError(str(error)) from error
    except TimeoutError:
        raise EngineError(f"{replica.name} did not answer the fingerprint's prompts in time") from None
    return off is not None
