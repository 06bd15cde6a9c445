"""nsqadmin's pages: their HTML, made here, and the scripts and styles they need, in `static`."""
