"""The engine replicas: processes or URLs, routing, health, rolling weight updates. `EnginePool` is the entry point."""
