"""The checks in the order in which they run, and why one cannot run on a machine. Pure; no torch is loaded here."""

from __future__ import annotations

from dataclasses import dataclass

from dart_train.gpu_check.check_setting import CheckSetting


@dataclass(frozen=True, slots=True)
class Check:
    """One check, which runs in a process of its own: a crash or a full memory ends this check only.

    Attributes:
        name: what the table and `--only` call it.
        function: "module:function" of a function of a `CheckSetting` that returns a list of `Outcome`.
        limit_s: seconds after which the process is ended and the check has failed.
        needs_vllm: whether it starts a vLLM server.
        needs_several: whether it needs at least two devices.
    """

    name: str
    function: str
    limit_s: float
    needs_vllm: bool = False
    needs_several: bool = False


_ROOM = "dart_train.gpu_check"
CHECKS = (
    Check("devices", f"{_ROOM}.device_checks:check_devices", 120.0),
    Check("attention", f"{_ROOM}.attention_checks:check_attention", 240.0),
    Check("parity", f"{_ROOM}.parity_checks:check_embedded", 300.0),
    Check("parity-vllm", f"{_ROOM}.parity_checks:check_vllm", 600.0, needs_vllm=True),
    Check("training", f"{_ROOM}.training_checks:check_training", 300.0),
    Check("fsdp", f"{_ROOM}.rank_checks:check_fsdp", 300.0, needs_several=True),
    Check("context", f"{_ROOM}.rank_checks:check_context", 300.0, needs_several=True),
    Check("weights-file", f"{_ROOM}.transfer_checks:check_files", 180.0),
    Check("weights-group", f"{_ROOM}.rank_checks:check_broadcast", 180.0, needs_several=True),
    Check("engine", f"{_ROOM}.engine_checks:check_engine", 600.0),
)


def reason_to_skip(check: Check, setting: CheckSetting) -> str | None:
    """Return why a check cannot run with this setting, or None if it can."""
    if check.needs_vllm and not setting.vllm:
        return "vLLM is not installed: dart-train engines install"
    if check.needs_several and setting.devices < 2:
        return "needs at least two GPUs"
    return None


def chosen(only: list[str] | None) -> list[Check]:
    """Return the named checks, all of them if none is named.

    Raises:
        KeyError: with the unknown name.
    """
    by_name = {check.name: check for check in CHECKS}
    unknown = next((name for name in only or [] if name not in by_name), None)
    if unknown is not None:
        raise KeyError(unknown)
    return [by_name[name] for name in only] if only else list(CHECKS)
