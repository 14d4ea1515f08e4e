"""Three clients that train together over TLS."""
