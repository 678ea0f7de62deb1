"""The embedded desktop: an Xvfb screen with real applications in a sandbox of this machine.

Others import `xvfb_desktop.XvfbDesktop`; the X connection and XTEST input are its parts.
"""
