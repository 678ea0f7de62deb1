"""What one desktop can do (`base.Desktop`), and the kinds of desktops there are."""
