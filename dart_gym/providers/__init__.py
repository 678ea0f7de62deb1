"""Providers of a server's desktops: this machine, Docker containers, virtual machines, another cluster, URLs.

Others import `provider_registry.make_provider`; `provider.Provider` the protocol; one file per provider.
"""
