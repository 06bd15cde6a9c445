"""One small HTTP/1.1 server for the daemons: messages, a table of routes, connections."""
