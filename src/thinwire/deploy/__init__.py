"""Server and clients that share nothing but bytes, and the transport between them."""
