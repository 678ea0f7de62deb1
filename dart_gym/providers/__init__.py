"""Who makes the desktops of a server: this machine, Docker containers, virtual machines, another cluster, URLs.

Others import `provider_registry.make_provider`; `provider.Provider` the protocol; one file per provider.
"""
