"""Mock web sites beside the desktops: which there are, how they are served, and each episode's state of them.

A site is a folder (`site_catalog`), served in the keeper of a desktop (`site_server`), by itself or as a proxy of a
program that the server starts once (`site_programs`). Knows nothing of desktops and tasks.
"""
