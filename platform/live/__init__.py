"""The event relay and browser sockets."""
