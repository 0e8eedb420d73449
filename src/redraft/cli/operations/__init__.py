"""What commands do. Each module is imported when a command of it runs, and imports all that it
needs at its top.
"""
