"""Is an implementation of attention right, and if not, what did it most likely do?"""
