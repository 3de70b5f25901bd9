"""Numbers about attention, one file an idea; nothing here yet needs more than a trace."""
