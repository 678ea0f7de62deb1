"""The Gymnasium environments: `DesktopEnv`, `DesktopVectorEnv`, their spaces and settings."""

from dart_gym.core.platforms import check_platform

check_platform("win32")  # here, before a module that Windows lacks is imported
