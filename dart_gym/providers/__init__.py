"""Who makes the desktops of a server: this machine, Docker containers, virtual machines, another cluster, URLs.

`provider_registry.make_provider` is the face, `provider.Provider` the protocol; one file per provider.
"""
