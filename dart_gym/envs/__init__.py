"""The Gymnasium environments: `DesktopEnv`, `DesktopVectorEnv`, their spaces and settings."""
