"""The embedded desktop: an Xvfb screen with real applications in a sandbox of this machine.

`xvfb_desktop.XvfbDesktop` is the face; the X connection and XTEST input are its parts.
"""
