"""The desktops of one server: slots lent in a fair order, a pool of warm desktops, admission by memory."""
