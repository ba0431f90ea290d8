"""What a program remembers over its restarts. Nothing here may hold up or fail the work that it remembers: callers hand
values over and go on, one task writes, and a disk that does not take them costs rows, never requests.
"""
