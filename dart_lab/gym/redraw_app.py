"""A program that redraws at once: the whole screen changes its colour with every click. Run on the desktop.

It uses python-xlib only, so that what is measured is the desktop, not a toolkit. It answers the window manager's
question whether it is alive, as all toolkits do.
"""

from Xlib import X, Xatom, display, protocol

COLORS = (0xE8E8E8, 0x305090, 0x90B060, 0xC07030)


def main():
    """Draw until killed."""
    connection = display.Display()
    screen = connection.screen()
    window = screen.root.create_window(
        0,
        0,
        screen.width_in_pixels,
        screen.height_in_pixels,
        0,
        screen.root_depth,
        background_pixel=COLORS[0],
        event_mask=X.ButtonPressMask | X.ExposureMask,
    )
    atom = connection.intern_atom
    protocols, ping = atom("WM_PROTOCOLS"), atom("_NET_WM_PING")
    window.set_wm_name("redraw")
    window.change_property(protocols, Xatom.ATOM, 32, [ping])
    window.change_property(atom("_NET_WM_STATE"), Xatom.ATOM, 32, [atom("_NET_WM_STATE_FULLSCREEN")])
    window.map()
    clicks = 0
    while True:
        event = connection.next_event()
        if event.type == X.ButtonPress:
            clicks += 1
            window.change_attributes(background_pixel=COLORS[clicks % len(COLORS)])
            window.clear_area(0, 0, 0, 0)
        elif event.type == X.ClientMessage and event.client_type == protocols and event.data[1][0] == ping:
            answer = protocol.event.ClientMessage(window=screen.root, client_type=protocols, data=event.data)
            screen.root.send_event(answer, X.SubstructureNotifyMask | X.SubstructureRedirectMask)
        connection.flush()


main()
