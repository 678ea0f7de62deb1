"""An engine in another process, over a websocket: the server, its client, and the frames between them."""
